"""`mtserve top` without a server: what two looks say, and how it is shown."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from mtserve_backend.commands.rates import grown, quantile, view
from mtserve_backend.commands.scrape import Scrape
from mtserve_backend.commands.top import amount, duration, frame, size
from mtserve_backend.commands.top_options import TopOptions
from mtserve_backend.embedded.errors import ServerError


def scraped(values: dict[tuple[str, str, str], float], model: str = "hstu") -> Scrape:
    """By name, label and the label's value."""
    samples = {}
    for (name, label, value), number in values.items():
        labels = {"model": model, "version": "1", **({label: value} if label else {})}
        samples[name, tuple(sorted(labels.items()))] = number
    return Scrape(samples)


BEFORE = scraped(
    {
        ("mtserve_engine_up", "", ""): 1,
        ("mtserve_requests_total", "outcome", "ok"): 100,
        ("mtserve_batches_total", "", ""): 50,
        ("mtserve_history_tokens_total", "source", "device"): 0,
        ("mtserve_history_tokens_total", "source", "new"): 100,
    }
)
AFTER = scraped(
    {
        ("mtserve_engine_up", "", ""): 1,
        ("mtserve_requests_total", "outcome", "ok"): 140,
        ("mtserve_requests_total", "outcome", "internal"): 2,
        ("mtserve_batches_total", "", ""): 60,
        ("mtserve_history_tokens_total", "source", "device"): 300,
        ("mtserve_history_tokens_total", "source", "host"): 60,
        ("mtserve_history_tokens_total", "source", "new"): 140,
        ("mtserve_batch_seconds_bucket", "le", "0.01"): 5,
        ("mtserve_batch_seconds_bucket", "le", "0.02"): 10,
        ("mtserve_batch_seconds_bucket", "le", "+Inf"): 10,
        ("mtserve_transfer_bytes_total", "direction", "onload"): 2**21,
        ("mtserve_transfer_seconds_total", "direction", "onload"): 0.5,
        ("mtserve_pool_bytes", "pool", "device"): 2**30,
        ("mtserve_pool_used_bytes", "pool", "device"): 2**29,
        ("mtserve_users", "tier", "device"): 7,
        ("mtserve_log_bytes", "", ""): 2**20,
        ("mtserve_log_limit_bytes", "", ""): 2**22,
    }
)


def test_rates_are_of_the_time_between() -> None:
    shown = view(BEFORE, AFTER, 2.0, "hstu")
    assert shown.outcomes == {"ok": 20.0, "internal": 1.0}
    assert shown.hit_ratio == {"device": 0.75, "host": 0.15}
    assert shown.hit_ratio_since_start == 0.72
    assert shown.batch_requests == 4.2
    assert shown.latency[0.5] == pytest.approx(0.01)
    assert shown.latency[0.9] == pytest.approx(0.018)
    assert shown.moved_bytes["onload"] == 2**20
    assert shown.bandwidth["onload"] == 2**22
    assert math.isnan(shown.queue_s)
    assert shown.up


def test_a_server_that_began_anew() -> None:
    assert grown(100, 30) == 30
    shown = view(AFTER, BEFORE, 1.0, "hstu")
    assert shown.outcomes == {"ok": 100.0}


@pytest.mark.parametrize(
    ("q", "buckets", "expected"),
    [
        (0.5, {"0.1": 10, "+Inf": 10}, 0.05),
        (0.5, {"0.1": 0, "0.2": 10, "+Inf": 10}, 0.15),
        (0.99, {"0.1": 1, "0.2": 1, "+Inf": 10}, 0.2),
        (0.1, {"0.1": 1, "0.2": 1, "+Inf": 10}, 0.1),
    ],
)
def test_quantiles_are_prometheuss(q: float, buckets: dict[str, float], expected: float) -> None:
    assert quantile(q, buckets) == pytest.approx(expected)


def test_no_quantile_of_nothing() -> None:
    assert math.isnan(quantile(0.5, {"0.1": 0, "+Inf": 0}))
    assert math.isnan(quantile(0.5, {}))


def rendered(options: TopOptions, before: Scrape, after: Scrape, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(frame(options, before, after, 2.0))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_shown(width: int) -> None:
    text = rendered(TopOptions(), BEFORE, AFTER, width)
    for expected in (
        "hstu  up", "requests/s 20.0", "internal 1.0", "hit ratio 90.0%", "device 75.0%", "host 15.0%", "p50 10.0 ms",
        "512.0 MiB", "1.0 GiB", "4.0 MiB/s", "since start 72.0%",
    ):  # fmt: skip
        assert expected in text, text
    assert "nan" not in text


def test_a_model_that_is_down_is_said_so() -> None:
    down = Scrape({key: 0.0 if key[0] == "mtserve_engine_up" else value for key, value in AFTER.samples.items()})
    assert "DOWN" in rendered(TopOptions(), BEFORE, down)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ServerError, match=r"There is no model other at .*: there are hstu"):
        frame(TopOptions(model="other"), BEFORE, AFTER, 1.0)
    with pytest.raises(ServerError, match="has no metrics of mtserve"):
        frame(TopOptions(), BEFORE, Scrape({}), 1.0)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:8002", "http://localhost:8002/metrics"),
        ("https://host/metrics", "https://host/metrics"),
        ("http://host:1/", "http://host:1/metrics"),
    ],
)
def test_addresses(address: str, url: str) -> None:
    assert TopOptions(address).url == url


def test_numbers_are_short() -> None:
    assert [duration(s) for s in (2e-5, 0.0123, 3.0)] == ["20 us", "12.3 ms", "3.00 s"]
    assert [amount(n) for n in (7, 9999, 123456, 5e7)] == ["7", "9999", "123.5k", "50.0M"]
    assert [size(n) for n in (5, 2048, 3 * 2**30)] == ["5 B", "2.0 KiB", "3.0 GiB"]
