"""Visits from traces, who goes with whom, the loops; the command with a real engine, also when interrupted."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from mtserve_backend.repository import shipped
from perf.lab.command import main
from perf.lab.presets import SMOKE
from perf.lab.workloads import WORKLOADS
from perf.replay import COMMAND
from perf.traces.make import generated as write_trace
from perf.traces.shapes import Lognormal, Shape
from perf.traffic import interrupts
from perf.traffic.dealer import Dealer
from perf.traffic.loops import Replay, interleaved
from perf.traffic.record import Record, summarize
from perf.traffic.server import serving
from perf.traffic.source import Histories, Vocabulary, generated, poisson, sped_up, window
from perf.traffic.target import Answer, Served
from perf.visits import Visit

SHAPE = Shape(users=6, days=0.05, longest=200, last_length=Lognormal(120, 0.3), items=50)
NOTHING = np.empty(0, np.int64)


def visits(*users: int) -> list[Visit]:
    return [
        Visit(user, NOTHING, NOTHING.astype(np.int32), 0, NOTHING, time=float(number))
        for number, user in enumerate(users)
    ]


def histories(seed: int = 1) -> Histories:
    return Histories(Vocabulary(40, 8), candidates=5, seed=seed)


class Slow:
    """Takes its time, and notices users who are under way twice."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.order: list[int] = []
        self.most = 0
        self._under_way: list[int] = []
        self._lock = threading.Lock()

    def serve(self, batch: Sequence[Visit], top_k: int | None = None) -> Served:
        users = [visit.user for visit in batch]
        with self._lock:
            assert not set(users) & set(self._under_way)
            self._under_way += users
            self.order += users
            self.most = max(self.most, len(self._under_way))
        time.sleep(self.seconds)
        with self._lock:
            for user in users:
                self._under_way.remove(user)
        answer = Answer(np.empty((0, 1), np.float32), NOTHING, 1, 2, 3)
        return Served((answer,) * len(batch), (self.seconds,) * len(batch), 0.0)

    def settle(self) -> None:
        pass


# --- visits ----------------------------------------------------------------------------------------------------------


def test_histories_grow_by_what_arrivals_bring_and_stay_what_they_were() -> None:
    arrivals = list(islice(generated(SHAPE, seed=3), 40))
    own = histories()
    made = [own.visit(arrival) for arrival in arrivals]
    before: dict[int, list[int]] = {}
    for arrival, visit in zip(arrivals, made, strict=True):
        whole = before.get(visit.user, []) + (arrival.items % 40).tolist()
        assert visit.items.tolist() == whole
        assert len(visit.actions) == arrival.history_length
        assert visit.actions.max() < 8
        assert visit.new == arrival.new
        assert len(visit.candidates) == 5
        before[visit.user] = whole


def test_a_window_knows_each_users_last_visit_before_it() -> None:
    part = window(generated(SHAPE, seed=3), histories(), mean_length=60)
    assert part.tokens >= 60 * len(part.before)
    times = [visit.time for visit in part.before]
    assert times == sorted(times)
    assert not any(len(visit.candidates) for visit in part.before)
    lengths = {visit.user: len(visit.items) for visit in part.before}
    for visit in islice(part.visits, 30):
        assert len(visit.items) - visit.new == lengths.get(visit.user, 0)
        lengths[visit.user] = len(visit.items)


def test_a_trace_from_its_middle_or_too_short_is_refused() -> None:
    arrivals = generated(SHAPE, seed=3)
    list(islice(arrivals, 50))
    with pytest.raises(ValueError, match="replayed from its first request"):
        window(arrivals, histories(), first=5)
    with pytest.raises(ValueError, match="there is no window from request 0 with 10,000"):
        window(generated(SHAPE, seed=3), histories(), mean_length=10_000)


def test_arrivals_can_be_sped_up_or_drawn() -> None:
    fast = list(sped_up([replace(visit, time=10 + visit.time) for visit in visits(1, 2, 3)], 4))
    assert [visit.time for visit in fast] == [0.0, 0.25, 0.5]
    drawn = list(poisson(visits(*range(1, 2001)), rate=50, seed=0))
    assert drawn[-1].time == pytest.approx(2000 / 50, rel=0.1)
    assert [visit.user for visit in drawn] == list(range(1, 2001))


# --- who goes together -----------------------------------------------------------------------------------------------


def test_a_batch_has_different_users_and_a_users_order_is_kept() -> None:
    dealer = Dealer(visits(1, 1, 2, 1, 3, 2))
    dealt = []
    while batch := dealer.take(2):
        dealt.append([(visit.user, int(visit.time)) for visit in batch])
        dealer.done(batch)
    assert dealt == [[(1, 0), (2, 2)], [(1, 1), (3, 4)], [(1, 3), (2, 5)]]


def test_who_is_under_way_is_waited_for() -> None:
    dealer = Dealer(visits(1, 1))
    first = dealer.take(1)
    threading.Timer(0.05, dealer.done, [first]).start()
    begin = time.perf_counter()
    assert [visit.time for visit in dealer.take(1)] == [1.0]
    assert time.perf_counter() - begin > 0.04


def test_nothing_is_dealt_before_it_is_due() -> None:
    start = time.perf_counter()
    dealer = Dealer(sped_up(visits(1, 2, 3), 20), clock=lambda: time.perf_counter() - start)
    assert len(dealer.take(2)) == 2
    assert time.perf_counter() - start >= 0.05


# --- loops -----------------------------------------------------------------------------------------------------------


def test_targets_take_turns_and_may_sit_batches_out() -> None:
    one, two = Slow(0), Slow(0)
    turns = list(
        interleaved({"one": one, "two": two}, Dealer(visits(1, 2, 3, 4)), 1, 3, lambda n, name: name == "two" or not n)
    )
    assert [(turn.number, turn.name) for turn in turns] == [(0, "one"), (0, "two"), (1, "two"), (2, "two")]
    assert two.order == [1, 2, 3]


def test_a_closed_loop_keeps_so_many_under_way() -> None:
    target, records = Slow(0.01), list[Record]()
    Replay("slow", target, records.append).closed(visits(*(1, 2, 3, 4, 5) * 8), size=1, concurrency=3)
    assert target.most == 3
    assert len(records) == 40
    assert summarize(records).requests == 40
    assert {record.user for record in records} == {1, 2, 3, 4, 5}


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    target, records = Slow(0.05), list[Record]()
    # One user every 10 ms who takes 50: each waits for those before.
    Replay("slow", target, records.append).open(sped_up(visits(1, 1, 1, 1), 100), size=1)
    assert [record.queue_s for record in records] == sorted(record.queue_s for record in records)
    assert records[-1].latency_s == pytest.approx(4 * 0.05 - 0.03, abs=0.03)


def test_what_a_target_raises_ends_the_loop_and_is_raised() -> None:
    class Broken(Slow):
        def serve(self, batch: Sequence[Visit], top_k: int | None = None) -> Served:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Replay("broken", Broken(0), lambda record: None).closed(visits(1, 2, 3), size=1, concurrency=2)


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_file_is_replayed_in_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, table, result = tmp_path / "few.trace", tmp_path / "records.csv", tmp_path / "result.json"
    write_trace(trace, "few", SHAPE, seed=3)
    words = [str(trace), "--preset", "smoke", "--through", "engine", "--paradigms", "hierarchical", "--batch", "2"]
    assert main(COMMAND, [*words, "--requests", "30", "--records", str(table), "--json", str(result)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 30
    for row in rows:
        found = int(row["device"]) + int(row["host"]) + int(row["recomputed"]) + int(row["new"])
        assert found == int(row["length"])
        assert float(row["step 8 encode ms"]) > 0
    assert json.loads(result.read_text())["tables"][0]["rows"][0][0] == "hierarchical"
    assert "total hits" in capsys.readouterr().out


def test_a_running_server_needs_its_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND, ["--preset", "smoke", "--server", "localhost:1"]) == 1
    assert "--server needs --items and --actions" in capsys.readouterr().err


@contextmanager
def replaying(table: Path) -> Iterator[subprocess.Popen[str]]:
    # Until Ctrl-C it waits for arrivals: one or two at first, the next after minutes.
    command = [sys.executable, "-m", "perf.replay", "--preset", "smoke", "--through", "engine", "--open"]
    command += ["--paradigms", "hierarchical", "--records", str(table), "--json", str(table.with_suffix(".json"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()


def test_an_interrupted_replay_keeps_what_it_measured(tmp_path: Path) -> None:
    table = tmp_path / "records.csv"
    with replaying(table) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (table.exists() and len(table.read_text().splitlines()) > 1):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted: this is what was measured until then" in errors
    assert "Traceback" not in errors
    assert "hierarchical" in said
    assert 1 <= len(list(csv.DictReader(table.open()))) < 64
    assert json.loads(table.with_suffix(".json").read_text())["interrupted"]


@pytest.mark.server
def test_an_interrupt_while_a_server_stops_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_seen", False)
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    weights = shipped() / "hstu" / "1" / "weights"
    small = {"device_cache": "4MiB", "onload_buffer": "1MiB", "host_cache": "8MiB", "threads": "1"}
    interrupts.install()

    def serve_and_be_interrupted_at_the_end() -> None:
        with serving(weights, {"small": small}) as server:
            stop = server.stop

            def interrupted_stop() -> int | None:
                threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
                return stop()

            monkeypatch.setattr(server, "stop", interrupted_stop)

    try:
        with pytest.raises(KeyboardInterrupt):
            serve_and_be_interrupted_at_the_end()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def test_workloads_have_windows_in_which_the_device_has_room_for_some() -> None:
    for name, workload in WORKLOADS["smoke"].items():
        part = workload.window(SMOKE, seed=0)
        pools = workload.pools(part, batch=8)
        assert 0 < workload.resident(part, pools) < len(part.before), name
        assert len(list(islice(part.visits, 120))) == 120, name
