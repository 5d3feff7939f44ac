"""Metrics without Triton: their names and table, what is counted, and what is told of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import mtserve_backend
from mtserve_backend.cache.records import RECOMPUTE_REASONS
from mtserve_backend.engine import Engine
from mtserve_backend.metrics import meter as meters
from mtserve_backend.metrics.distribution import Distribution
from mtserve_backend.metrics.families import ALL, FAMILIES, HISTOGRAMS, Family, table
from mtserve_backend.metrics.meter import Meter
from mtserve_backend.metrics.publisher import Publisher
from mtserve_backend.metrics.state import Fixed
from mtserve_backend.ranking import Code, RankAnswer, RankRequest, RequestError
from mtserve_backend.steps import STEPS
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.test_embedded import within

DOCS = Path(mtserve_backend.__file__).parent.parent / "docs" / "metrics.md"
CANDIDATES = np.arange(5)
UNITS = ("_total", "_seconds", "_bytes", "_tokens", "_ratio")
COUNTS = ("mtserve_offloads_pending", "mtserve_users_unsaved", "mtserve_users", "mtserve_engine_up")
COUNTS = (*COUNTS, "mtserve_streams_broken")


class Memory:
    """A sink that keeps what it is told, as Triton does."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, str], Kept] = {}
        self.calls = 0
        self.fails = False

    def series(self, family: Family, label_value: str) -> Kept:
        return self.made.setdefault((family.name, label_value), Kept(self))

    def value(self, name: str, label_value: str = "") -> float:
        return self.made[name, label_value].value


class Kept:
    def __init__(self, sink: Memory) -> None:
        self.sink, self.value = sink, 0.0

    def increment(self, amount: float) -> None:
        assert amount > 0
        self._called()
        self.value += amount

    def set(self, value: float) -> None:
        self._called()
        self.value = value

    def _called(self) -> None:
        if self.sink.fails:
            raise RuntimeError("the sink is gone")
        self.sink.calls += 1


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    worlds.lively_model(tmp_path)
    return worlds.engine(tmp_path)


@pytest.fixture
def meter(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Meter:
    monkeypatch.setattr(meters, "LOOK_EVERY_S", 0.0)
    return Meter(engine, Fixed(engine.manager.geometry, page_bytes=64, quota_tokens=100, log_limit_bytes=2**20))


def serve(engine: Engine, meter: Meter, *histories: tuple[int, History]) -> list[RankAnswer]:
    outcomes = engine.serve([worlds.request(user, history, CANDIDATES) for user, history in histories])
    meter.answered(outcomes, 0.01)
    engine.idle()
    meter.look()
    assert all(isinstance(outcome, RankAnswer) for outcome in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


def test_names_follow_prometheus() -> None:
    assert len({family.name for family in ALL}) == len(ALL) == len(FAMILIES) + 3 * len(HISTOGRAMS)
    for family in FAMILIES:
        assert re.fullmatch(r"mtserve_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.name.endswith(UNITS) or family.name in COUNTS, family.name
        assert family.help.endswith(".")
        assert family.label not in ("user", "id", "model", "version", "le")
    for histogram in HISTOGRAMS:
        assert re.fullmatch(r"mtserve_[a-z_]+_seconds", histogram.name)
        names = [family.name.removeprefix(histogram.name) for family in histogram.families()]
        assert names == ["_bucket", "_sum", "_count"]


def test_the_table_is_that_of_the_docs() -> None:
    assert table() in DOCS.read_text(), "run `python -m mtserve_backend.metrics` and put its table into docs/metrics.md"


def test_labels_are_the_same_from_the_first_moment_on(engine: Engine, meter: Meter) -> None:
    first = {(family.name, label) for family in ALL for label, _ in family.read(meter.state())}
    serve(engine, meter, (1, worlds.random_history(np.random.default_rng(0), 20)))
    last = {(family.name, label) for family in ALL for label, _ in family.read(meter.state())}
    assert first == last
    assert {label for name, label in first if name == "mtserve_recomputed_tokens_total"} == set(RECOMPUTE_REASONS)
    assert {label for name, label in first if name == "mtserve_step_seconds_total"} == set(STEPS)
    assert {label for name, label in first if name == "mtserve_requests_total"} == {
        "ok", *(code.value.lower() for code in Code)
    }  # fmt: skip


def test_what_is_told_adds_up(engine: Engine, meter: Meter) -> None:
    sink = Memory()
    publisher, rng, told = Publisher(meter, sink), np.random.default_rng(1), np.zeros(4)
    answered = 0
    for turn in range(30):
        history = worlds.random_history(rng, int(rng.integers(1, 60)))
        for answer in serve(engine, meter, (turn % 7, history)):
            cache = answer.cache
            told += (cache.device, cache.host, cache.recomputed, cache.new)
            answered += 1
        if turn % 4 == 0:
            publisher.publish(meter.state())
    publisher.publish(meter.state())
    sources = ("device", "host", "recomputed", "new")
    assert [sink.value("mtserve_history_tokens_total", source) for source in sources] == told.tolist()
    assert sink.value("mtserve_requests_total", "ok") == answered
    assert sink.value("mtserve_batch_seconds_count") == 30
    assert sink.value("mtserve_batch_seconds_sum") == pytest.approx(0.3)
    assert [sink.value("mtserve_batch_seconds_bucket", bound) for bound in ("0.005", "0.01", "+Inf")] == [0, 30, 30]
    assert sink.value("mtserve_wave_seconds_count") == sink.value("mtserve_waves_total") >= 30
    assert sink.value("mtserve_candidates_total") == answered * len(CANDIDATES)
    geometry = engine.manager.geometry
    assert sink.value("mtserve_pool_bytes", "device") == geometry.device_pages * 64
    assert sink.value("mtserve_users", "known") == 7
    calls = sink.calls
    publisher.publish(meter.state())
    assert sink.calls == calls, "what has not changed is not told again"


def test_errors_are_counted_by_code(meter: Meter) -> None:
    sink = Memory()
    publisher = Publisher(meter, sink)
    meter.answered([RequestError(code, "no") for code in Code] + [RequestError(Code.NOT_FOUND, "no")], 0.5)
    publisher.publish(meter.state())
    found = {code: sink.value("mtserve_requests_total", code.value.lower()) for code in Code}
    assert found == {**dict.fromkeys(Code, 1), Code.NOT_FOUND: 2}
    assert sink.value("mtserve_requests_total", "ok") == 0


def visit(engine: Engine, meter: Meter, user: int, history: History) -> dict[str, int]:
    """The reasons for what was recomputed in one request."""
    before = dict(engine.manager.counters.recomputed_because)
    answer = serve(engine, meter, (user, history))[0]
    after = engine.manager.counters.recomputed_because
    grown = {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]}
    assert sum(grown.values()) == answer.cache.recomputed
    return {str(reason): count for reason, count in grown.items()}


def test_reasons_for_recomputing(tmp_path: Path) -> None:
    worlds.lively_model(tmp_path)
    engine = worlds.engine(tmp_path, cache_mode="device")
    meter = Meter(engine, Fixed(engine.manager.geometry, 64, 0, 2**20))
    rng = np.random.default_rng(2)
    histories = {user: worlds.random_history(rng, 60) for user in range(4)}
    for user, history in histories.items():
        assert visit(engine, meter, user, history) == {}
    assert visit(engine, meter, 0, histories[0]) == {"evicted": 60}
    assert visit(engine, meter, 0, histories[0]) == {}
    long = worlds.random_history(rng, worlds.MAX_HISTORY)
    assert visit(engine, meter, 9, long) == {}
    more = worlds.random_history(rng, 1)
    longer = History(np.append(long.items, more.items), np.append(long.actions, more.actions))
    assert visit(engine, meter, 9, longer) == {"window": worlds.MAX_HISTORY - worlds.STRIDE}


def test_a_failed_load_is_a_reason_and_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "LOOK_EVERY_S", 0.0)
    worlds.lively_model(tmp_path)
    engine = worlds.engine(tmp_path, host_cache="40 chunks")
    meter = Meter(engine, Fixed(engine.manager.geometry, 64, 100, 2**20))
    rng = np.random.default_rng(4)
    histories = {user: worlds.random_history(rng, 60) for user in range(3)}
    for user, history in histories.items():
        assert visit(engine, meter, user, history) == {}
        assert within(10, lambda: not engine.idle() and not engine.manager.tasks)
    record = engine.manager.users.get(0)
    assert record is not None
    assert record.host_length > 0 == record.device_length, "it is on the host, and to be loaded"

    def fail(*_: object) -> None:
        raise RuntimeError("the copy failed")

    monkeypatch.setattr(engine.moves.onloader, "_load_task", fail)
    assert visit(engine, meter, 0, histories[0]) == {"failed": 60}
    readings = {family.name: dict(family.read(meter.state())) for family in FAMILIES}
    assert readings["mtserve_transfer_failures_total"] == {"onload": 1, "offload": 0}
    assert readings["mtserve_recomputed_tokens_total"]["failed"] == 60
    assert readings["mtserve_transfer_seconds_total"]["offload"] > 0
    assert readings["mtserve_transfer_bytes_total"]["offload"] > 0


def test_without_a_cache_all_is_recomputed(tmp_path: Path) -> None:
    worlds.lively_model(tmp_path)
    engine = worlds.engine(tmp_path, cache_mode="recompute")
    meter = Meter(engine, Fixed(engine.manager.geometry, 64, 0, 2**20))
    history = worlds.random_history(np.random.default_rng(3), 30)
    assert visit(engine, meter, 1, history) == {}
    assert visit(engine, meter, 1, history) == {"uncached": 30}


def test_gauges_end_at_zero_and_totals_stay(engine: Engine, meter: Meter) -> None:
    sink = Memory()
    publisher = Publisher(meter, sink)
    publisher.start()
    serve(engine, meter, (1, worlds.random_history(np.random.default_rng(0), 20)))
    publisher.stop()
    for family in ALL:
        for label, value in family.read(meter.state()):
            expected = 0 if family.kind == "gauge" else value
            assert sink.value(family.name, label) == pytest.approx(expected), family.name
    assert sink.value("mtserve_history_tokens_total", "new") == 20


def test_a_sink_that_fails_is_logged_once_and_harms_nobody(
    engine: Engine, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Memory()
    publisher = Publisher(meter, sink)
    sink.fails = True
    for user in range(3):
        serve(engine, meter, (user, worlds.random_history(np.random.default_rng(user), 10)))
        publisher._guarded(meter.state())
    assert caplog.text.count("metrics could not be published") == 1
    sink.fails = False
    publisher._guarded(meter.state())
    assert sink.value("mtserve_requests_total", "ok") == 3, "what could not be told is told later"


def test_a_distribution_counts_as_prometheus_does() -> None:
    distribution = Distribution((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        distribution.add(seconds)
    state = distribution.state()
    assert state.buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}, "a bucket holds its bound, and all before it"
    assert (state.count, state.seconds) == (4, pytest.approx(7.65))


def test_looking_is_bounded_in_frequency(engine: Engine) -> None:
    meter = Meter(engine, Fixed(engine.manager.geometry, 64, 0, 2**20))
    meter.look()
    seen = meter.state().engine
    engine.serve([RankRequest(1, worlds.random_history(np.random.default_rng(0), 5).since(0), CANDIDATES)])
    meter.look()
    assert meter.state().engine is seen
    assert meter.last_state().engine is not seen
