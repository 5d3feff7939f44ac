"""The measurement of the bookkeeping runs, at its smallest, and writes what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf import metadata
from perf.metadata_users import HISTORY, GrowingUsers, flatness


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert metadata.main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert [row["users"] for row in report["users"]] == [2_000, 20_000]
    assert report["users"][1]["evictions_per_request"] > 0.1
    assert {row["guests"] for row in report["steps"]} == {"device", "host"}
    assert all(row["metadata_ms"]["fastest"] > 0 for row in report["steps"])
    assert report["offload_ms"]["fastest"] > 0
    assert report["environment"]["machine"]["cores"]
    assert "slowest size over the smallest" in capsys.readouterr().out


def test_what_is_timed_evicts_and_loads_and_leaves_the_books_right() -> None:
    users = GrowingUsers()
    users.grow(5_000)
    assert len(users.manager.users) == 5_000
    assert users.manager.tiers.primary.used == 0
    for number in [*range(1_500), *range(500)]:
        assert all(nanoseconds > 0 for nanoseconds in users.request(number))
    counters = users.manager.counters
    assert counters.device_evictions > 900
    assert counters.onloaded >= 500 * HISTORY
    users.manager.check()


def test_flatness_is_of_the_slowest_size() -> None:
    rows = [{"total_us": {"median": median}} for median in (20.0, 50.0, 30.0)]
    assert flatness([*rows, {"skipped": "no memory"}]) == 2.5
