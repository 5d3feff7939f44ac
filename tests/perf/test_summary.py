"""Figures and tables from hand-made records."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from perf.judged import Judged
from perf.plot import latency_plot, medians
from perf.stats import percentile, ratio
from perf.summary import disagreements, summarize, table

RECORD = Judged(
    mode="recompute", user=1, length=100, new=10, seconds=0.4, device=0, host=0, recomputed=90, difference=0.0,
    judged=True, rank=0, ranking=(3, 4),
)  # fmt: skip


def record(mode: str, **changes: object) -> Judged:
    return dataclasses.replace(RECORD, mode=mode, **changes)  # type: ignore[arg-type]


def test_percentile_and_ratio() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([5.0], 95) == 5.0
    assert math.isnan(percentile([], 50))
    assert ratio(1, 4) == 0.25
    assert math.isnan(ratio(1, 0))


def test_by_hand() -> None:
    records = [
        RECORD,
        record("recompute", seconds=0.8, rank=None),
        record("hierarchical", seconds=0.1, device=60, host=30, recomputed=0),
        record("hierarchical", seconds=0.2, device=0, host=90, recomputed=0, rank=None, difference=3e-7),
    ]
    found = summarize(records)
    assert list(found) == ["recompute", "hierarchical"], "modes that answered nothing are left out"
    best = found["hierarchical"]
    assert (best.requests, best.p50_ms, best.p95_ms) == (2, pytest.approx(150), pytest.approx(195))
    assert best.speedup_p50 == pytest.approx(0.6 / 0.15)
    assert best.speedup_total == pytest.approx(1.2 / 0.3)
    assert best.device_hit_ratio == pytest.approx(60 / 200)
    assert best.total_hit_ratio == pytest.approx(180 / 200)
    assert best.quality.hr == 0.5
    assert disagreements(found) == []
    text = table(found)
    assert "4.00x" in text
    assert "HR@10" in text
    assert "HR@10" not in table(summarize([record("device", judged=False)]))


def test_a_difference_between_modes_is_said() -> None:
    other_rank = summarize([RECORD, record("device", rank=4)])
    assert "quality differs" in disagreements(other_rank)[0]
    other_scores = summarize([RECORD, record("device", difference=2e-5)])
    assert disagreements(other_scores)[0].startswith("device: scores differ from recompute's by 2.0e-05")
    no_number = summarize([RECORD, record("device", difference=math.nan)])
    assert "device: scores differ" in disagreements(no_number)[0], "NaN is no agreement"


def test_where_a_history_was_found() -> None:
    assert RECORD.found == "nowhere"
    assert record("device", device=50, recomputed=40).found == "on the device"
    assert record("hierarchical", host=90, recomputed=0).found == "in host memory"
    assert record("device", length=10, recomputed=0).found == "new user"


def test_the_plot_shows_medians_per_mode_and_tier(tmp_path: Path) -> None:
    records = [
        record("recompute", length=610, seconds=1.0),
        record("recompute", length=642, seconds=3.0),
        record("recompute", length=1210, seconds=5.0),
        record("hierarchical", length=610, host=600, recomputed=0, seconds=0.2),
        record("recompute", length=10, seconds=9.0),
    ]
    assert medians(records) == {
        ("recompute", "nowhere"): [(600, 2.0), (1200, 5.0)],
        ("hierarchical", "in host memory"): [(600, 0.2)],
    }
    latency_plot(records, "hand-made", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
