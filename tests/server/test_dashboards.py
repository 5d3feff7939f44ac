"""The dashboard and the rules, in the real Prometheus, over the real server under load."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import mtserve_backend
from mtserve_backend.metrics.families import ALL, FAMILIES
from perf.debian import DebianError
from perf.prometheus import Prometheus, PrometheusError, program, promtool
from tests.engine import worlds
from tests.server.lively import MODEL, serving, visit
from tests.server.raw import Raw
from tests.server.test_embedded import within

ROOT = Path(mtserve_backend.__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "mtserve.json"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
RECORDED = [rule for group in GROUPS for rule in group["rules"] if "record" in rule]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
PANELS = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
VARIABLES = {"$instance": ".*", "$model": ".*", "$__rate_interval": "20s"}
# A word before a selector, a range, an operator or an end: what is left are functions, labels and keywords.
METRIC = re.compile(r"\b(?:mtserve|nv|model\w*:mtserve|model:triton)[a-z0-9_:]*")


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    try:
        program()
    except DebianError as error:
        pytest.skip(str(error))


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(RECORDED) + len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


def test_every_alert_fires_and_only_when_it_should() -> None:
    """`promtool test rules` over rules_test.yml: each alert, with series that raise it and series that do not."""
    tests = RULES.with_name("rules_test.yml")
    promtool("test", "rules", str(tests))
    cases = yaml.safe_load(tests.read_text())["tests"]
    found = [(case["alertname"], bool(case["exp_alerts"])) for test in cases for case in test["alert_rule_test"]]
    assert {name for name, fires in found if fires} == {rule["alert"] for rule in ALERTS}
    assert {name for name, fires in found if not fires} == {rule["alert"] for rule in ALERTS}


def test_every_alert_has_its_line_in_the_runbook() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/operations.md"
        assert anchor == rule["alert"].lower()
        assert f'<a id="{anchor}"></a>' in text, rule["alert"]


def test_the_dashboard_is_as_built() -> None:
    spec = importlib.util.spec_from_file_location("build", DASHBOARD.with_name("build.py"))
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["build"] = build
    spec.loader.exec_module(build)
    assert json.loads(DASHBOARD.read_text()) == build.dashboard(), "run `python deploy/grafana/build.py`"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for panel in PANELS for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert {family.name for family in FAMILIES} - shown == {"mtserve_hit_ratio"}, "ratios over time are queries' work"


def test_panels_do_not_overlap() -> None:
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """After some seconds of traffic that moves users between the tiers, and while it goes on."""
    folder = tmp_path_factory.mktemp("lively")
    worlds.lively_model(folder)
    done = threading.Event()
    failures: list[BaseException] = []
    with serving(tmp_path_factory.mktemp("repository"), folder) as server:

        def live(seed: int) -> None:
            rng = np.random.default_rng(seed)
            histories = {user: worlds.random_history(rng, 30) for user in range(seed * 10 + 1, seed * 10 + 8)}
            try:
                with closing(Raw("grpc", server)) as raw:
                    while not done.wait(0.01):
                        user = int(rng.choice(list(histories)))
                        if rng.random() < 0.2:
                            histories[user] = worlds.random_history(rng, int(rng.integers(20, 80)))
                        raw.send(MODEL, visit(user, histories[user]))
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=live, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        with Prometheus([server.metrics_url.removeprefix("http://").removesuffix("/metrics")], [RULES]) as running:
            last = RECORDED[-1]["record"]
            assert within(60, lambda: bool(running.query(last)) and bool(running.query("mtserve_waves_total > 100")))
            time.sleep(5)
            yield running
        done.set()
        for thread in threads:
            thread.join(30)
    assert not failures, failures


def filled(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def numbers(prometheus: Prometheus, expression: str) -> list[float]:
    return [float(series["value"][1]) for series in prometheus.query(expression)]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_no_query_of_the_dashboard_is_empty(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = numbers(prometheus, filled(target["expr"]))
        assert found, target["expr"]
        assert all(math.isfinite(number) for number in found), target["expr"]
        legend = target["legendFormat"]
        for label in re.findall(r"{{(\w+)}}", legend):
            assert label in prometheus.query(filled(target["expr"]))[0]["metric"], f"{legend}: {target['expr']}"


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule["record"])
def test_no_recorded_rule_is_empty(prometheus: Prometheus, rule: dict[str, Any]) -> None:
    for expression in (rule["expr"], rule["record"]):
        found = numbers(prometheus, expression)
        assert found, expression
        assert all(math.isfinite(number) for number in found), expression


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_no_alert_looks_at_nothing(prometheus: Prometheus, rule: dict[str, Any]) -> None:
    """With comparisons that answer 0 or 1 instead of leaving out what is not so, every alert has series to look at."""
    prometheus.query(rule["expr"])
    compared = re.sub(r"(==|<|>)(?= [0-9.]+)", r"\1 bool", rule["expr"])
    assert " bool " in compared
    assert numbers(prometheus, compared), compared


def test_no_metric_is_unknown(prometheus: Prometheus) -> None:
    known = set(prometheus.get("label/__name__/values"))
    assert {family.name for family in ALL} <= known
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions += [rule["expr"] for rule in (*RECORDED, *ALERTS)]
    for expression in expressions:
        used = set(METRIC.findall(expression))
        assert used, expression
        assert used <= known, expression
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert all(label in series["metric"] for series in prometheus.query(metric))


def test_prometheus_evaluates_the_rules_without_error(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDED) + len(ALERTS)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert not [rule["name"] for rule in rules if rule.get("state") == "firing"]


def test_a_query_that_is_wrong_is_said_so(prometheus: Prometheus) -> None:
    with pytest.raises(PrometheusError, match="parse error"):
        prometheus.query("sum(")
