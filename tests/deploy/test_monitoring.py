"""Prometheus's configuration and Grafana's provisioning: the files that compose mounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import mtserve_backend
from perf.debian import DebianError
from perf.prometheus import program, promtool

DEPLOY = Path(mtserve_backend.__file__).parent.parent / "deploy"
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def test_promtool_accepts_the_configuration_and_its_rules() -> None:
    try:
        program("promtool")
    except DebianError as error:
        pytest.skip(f"no promtool: {error}")
    said = promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    assert "SUCCESS: 1 rule files found" in said


def read(*parts: str) -> Any:
    return yaml.safe_load(PROVISIONING.joinpath(*parts).read_text())


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = read("datasources", "prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True
    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert services[host]["healthcheck"]["test"][-1].startswith(f"http://127.0.0.1:{port}/")
    (provider,) = read("dashboards", "mtserve.yml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    target = mounts["./deploy/grafana/mtserve.json"]
    assert str(Path(target).parent) == provider["options"]["path"]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == target
    dashboard = json.loads((DEPLOY / "grafana" / "mtserve.json").read_text())
    (variable,) = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    assert variable["query"] == source["type"], "the default data source is the one provisioned"
