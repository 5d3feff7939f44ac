"""The paper calculation, against one done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtserve_backend.models.config import HSTUConfig
from perf.floors import LINK, PRODUCTS, WAITING, Device, Request, Stage, Wait, floor, main, most_loaded, stages

# One layer of two heads of 3: inner 6; hidden 5. A token's state is 12 values, 24 bytes.
TINY = HSTUConfig(layers=1, heads=2, head_dim=3, hidden=5, items=9, actions=2, max_history=99, tasks=("x",))
REQUEST = Request(history=10, new=2, candidates=3)


def by_name(way: str, batch: int = 1) -> dict[str, Stage]:
    request = Request(REQUEST.history, REQUEST.new, REQUEST.candidates, batch)
    return {stage.name: stage for stage in stages(TINY, request, way)}


def test_a_device_hit_by_hand() -> None:
    found = by_name("device hit")
    # 5 rows, 5 x 24 weights.
    assert found["projections"] == Stage("projections", PRODUCTS, 2 * 5 * 5 * 24, 2 * (5 * 24 + 5 * (5 + 24)))
    # New rows see 11 and 12 keys, candidates 12 and themselves.
    assert found["attention"].operations == 4 * 6 * (11 + 12 + 3 * 13)
    assert found["attention"].moved == 12 * 24 + 5 * 2 * 6 * 2
    assert found["output"].operations == 2 * 5 * 6 * 5
    assert found["append"].moved == 2 * 2 * 24
    assert found["offload"].linked == 2 * 24
    assert found["offload"].behind
    assert "onload" not in found


def test_a_recompute_by_hand() -> None:
    found = by_name("recompute")
    assert found["attention"].operations == 4 * 6 * (12 * 13 // 2 + 3 * 13)
    assert found["projections"].operations == 2 * 15 * 5 * 24


def test_a_host_hit_moves_the_history_over_the_link() -> None:
    found = by_name("host hit", batch=4)
    assert found["onload"].linked == 4 * 10 * 24
    assert found["scatter"].moved == 2 * 4 * 10 * 24
    assert found["scatter"].behind
    device = Device("slow link", 1e12, 1e12, 1e3)
    assert floor(list(found.values()), device) == pytest.approx(0.96)
    assert floor(list(found.values()), device, allowed=True) == pytest.approx(0.96 / LINK)


def test_a_stage_may_cost_its_floor_over_what_is_aimed_at() -> None:
    device = Device("", operations=100.0, memory=10.0, link=1.0)
    assert Stage("attention", 0.5, operations=200.0, moved=10.0).allowed(device) == pytest.approx(4.0)
    ahead, behind = Stage("a", 0.5, moved=10.0), Stage("b", 0.5, moved=1000.0, behind=True)
    assert floor([ahead, behind], device) == pytest.approx(1.0)
    assert floor([ahead, behind], device, allowed=True) == pytest.approx(2.0)


def test_a_batch_reads_the_weights_once() -> None:
    one, four = by_name("device hit"), by_name("device hit", batch=4)
    weights = 2 * 5 * 24
    assert four["projections"].moved - weights == 4 * (one["projections"].moved - weights)
    assert four["attention"].operations == 4 * one["attention"].operations


def test_what_a_load_takes_longer_than_the_compute_is_waited_for() -> None:
    request, slow = Request(10, 2, 3, batch=4), Device("slow link", 1e6, 1e6, 1e5)
    compute = sum(stage.allowed(slow) for stage in stages(TINY, request, "device hit") if not stage.behind)
    none, two = (Wait.of(TINY, request, loaded, slow) for loaded in (0, 2))
    assert (none.compute, none.load, none.share) == (pytest.approx(compute), 0, 0)
    assert two.load == pytest.approx(2 * 10 * 24 / 1e5 / LINK)
    assert two.seconds == pytest.approx(max(0.0, two.load - compute))
    slower = Device("slower link", 1e6, 1e6, 1e3)
    late = Wait.of(TINY, request, 2, slower)
    assert late.share == pytest.approx(1 - late.compute / late.load)
    assert Wait(0.9 * late.load, late.load).share == pytest.approx(WAITING)
    just = Wait.of(TINY, request, 4, slower).load * most_loaded(TINY, request, slower)
    assert Wait(late.compute, just).share == pytest.approx(WAITING)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batches", "2", "--json", str(tmp_path / "floors.json")]) == 0
    assert "| 2 | host hit | onload |" in capsys.readouterr().out
    written = json.loads((tmp_path / "floors.json").read_text())
    assert written["batch 2, recompute"]["floor_s"]
    with pytest.raises(SystemExit):
        main(["--batches", "0"])
