"""Kinds of faults that engines of this sort have had, those that tests/engine/test_faults.py does not have.

docs/faults.md maps every kind to its tests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtserve_backend.cache.history import TokenLog
from mtserve_backend.cache.manager import CacheManager, PinError
from mtserve_backend.cache.records import Geometry, LookUp, OffloadTask, UserRecord, Visit
from mtserve_backend.cache.slots import SlotError, SlotPool
from mtserve_backend.config import Config, ConfigError
from mtserve_backend.engine import Engine
from mtserve_backend.kernels import attention
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import Code, RankAnswer, RequestError
from mtserve_backend.service import RankingService
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, grown, settle
from tests.engine.test_faults import burn, check, evicted_users
from tests.races.test_transfer_orders import wait_until

Lively = tuple[HSTU, Path]
StartEngine = Callable[..., Engine]
HOST = pytest.mark.parametrize("host_memory", ["pinned", "pageable"])


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Lively:
    folder = tmp_path_factory.mktemp("lively")
    return worlds.lively_model(folder), folder


def die() -> None:
    raise SystemExit("killed")


# --- evicted between look-up and load --------------------------------------------------------------------------------


@pytest.mark.parametrize("looked_up", [True, False])
def test_what_is_looked_up_is_not_evicted_before_it_is_loaded(
    lively: Lively, start_engine: StartEngine, looked_up: bool
) -> None:
    """vllm 39702, sglang 31427. Without a look-up the same traffic does evict: the test would notice."""
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages", host_cache="8 chunks")
    histories = evicted_users(engine, 2)
    manager, history = engine.manager, histories[1]
    look_up = manager.look_up(Visit(1, history.since(0))) if looked_up else None
    rng = np.random.default_rng(2)
    for user in range(10, 16):
        check(engine, model, {user: worlds.random_history(rng, 32)})
        settle(engine)
    assert manager.counters.host_evictions > 0
    if look_up is not None:
        manager.forgo(look_up)
    (answer,) = check(engine, model, {1: history})
    assert answer.cache.host == (32 if looked_up else 0)


# --- a failed transfer kills the process -----------------------------------------------------------------------------


def test_no_memory_for_a_transient_buffer_is_a_failed_offload(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages")
    empty = torch.empty

    def no_memory(*arguments: Any, **options: Any) -> torch.Tensor:
        # Only the saving is starved: computing needs memory too.
        if threading.current_thread().name == "mtserve-offload":
            raise torch.OutOfMemoryError("tried to allocate")
        return empty(*arguments, **options)

    rng = np.random.default_rng(3)
    histories = {user: worlds.random_history(rng, 32) for user in (1, 2)}
    monkeypatch.setattr(torch, "empty", no_memory)
    for user, history in histories.items():
        check(engine, model, {user: history})
        settle(engine)
    monkeypatch.undo()
    assert engine.manager.counters.offload_failures == 1  # and no second attempt yet
    assert "tried to allocate" in caplog.text
    check(engine, model, histories)


# --- a background thread dies in silence -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["load-0", "save-0", "onload", "scatter", "offload"])
@pytest.mark.parametrize("at_work", [False, True])
def test_a_dead_copying_thread_is_noticed_and_survived(lively: Lively, name: str, at_work: bool) -> None:
    """It dies before the transfers are asked for or under them; either way their pins and quota come back."""
    model, folder = lively
    engine = worlds.engine(folder, device_cache="20 pages", transfer_timeout_s=0.2, host_memory="pageable")
    histories = evicted_users(engine, 3)
    (worker,) = (stream for stream in engine.streams.all() if stream.name == name)
    release = threading.Event()
    if at_work:
        worker.submit(lambda: release.wait(30) and None)
    worker.submit(die)
    if not at_work:
        wait_until(lambda: worker.broken is not None)
    for number in range(3):
        check(engine, model, histories)
        histories = {user: grown(np.random.default_rng(number), history, 9) for user, history in histories.items()}
        release.set()
    wait_until(lambda: worker.broken is not None)
    assert engine.broken is not None
    assert name in engine.broken
    settle(engine)
    engine.manager.check()
    assert pins(engine) == 0
    assert engine.manager.offloading_tokens == 0
    engine.close(5)


def test_a_dead_compute_stream_is_an_error_at_once(lively: Lively) -> None:
    _, folder = lively
    service = RankingService(worlds.engine(folder), request_timeout_s=30)
    history = worlds.random_history(np.random.default_rng(4), 20)
    service.engine.streams.compute.submit(die)
    begin = time.monotonic()
    for _ in range(3):
        try:
            (outcome,) = service.rank([worlds.request(1, history, CANDIDATES)])
        except Exception as error:  # noqa: BLE001 - Triton makes an error of the whole batch of it
            outcome = RequestError(Code.INTERNAL, str(error))
        assert isinstance(outcome, RequestError)
        assert outcome.code in (Code.INTERNAL, Code.UNAVAILABLE)
    service.close(2)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("when", ["idle", "after a batch"])
def test_a_dead_engine_thread_is_logged_and_its_callers_are_told(
    lively: Lively, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    model, folder = lively
    service = RankingService(worlds.engine(folder), request_timeout_s=30)
    history = worlds.random_history(np.random.default_rng(5), 20)
    request = worlds.request(1, history, CANDIDATES)
    if when == "after a batch":
        monkeypatch.setattr(service.engine.manager, "plan_tail_flushes", burn)
    (outcome,) = service.rank([request])
    worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
    monkeypatch.setattr(service.engine.manager, "plan_tail_flushes", burn)
    wait_until(lambda: not service._thread.is_alive())
    begin = time.monotonic()
    (outcome,) = service.rank([request])
    assert isinstance(outcome, RequestError)
    assert outcome.code is Code.UNAVAILABLE
    assert time.monotonic() - begin < 1
    (logged,) = (record for record in caplog.records if "the engine failed" in record.getMessage())
    assert logged.levelno >= logging.ERROR
    assert "on fire" in str(logged.exc_info)
    service.close(2)


# --- pins never returned on cancel or error --------------------------------------------------------------------------


def pins(engine: Engine) -> int:
    return sum(record.pins for _, record in engine.manager.users.items())


@HOST
@pytest.mark.parametrize("stage", ["embed", "append", "attend", "encode", "score"])
def test_an_error_at_any_step_returns_every_pin(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, stage: str, host_memory: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages", host_memory=host_memory)
    histories = evicted_users(engine, 3)
    target = attention if stage in ("append", "attend") else engine.compute.model
    original, calls = getattr(target, stage), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise RuntimeError("not now")
        return original(*arguments)

    monkeypatch.setattr(target, stage, failing)
    rng = np.random.default_rng(6)
    for _ in range(3):
        batch = {**histories, 9: worlds.random_history(rng, 10)}
        outcomes = engine.serve([worlds.request(user, history, CANDIDATES) for user, history in batch.items()])
        for outcome, history in zip(outcomes, batch.values(), strict=True):
            if isinstance(outcome, RequestError):
                assert outcome.code is Code.INTERNAL
            else:
                worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
        engine.manager.check()
        settle(engine)
        assert pins(engine) == 0
    assert calls
    monkeypatch.undo()
    check(engine, model, histories)


@pytest.mark.parametrize("looks", [0, 1, 2, 3])
def test_a_cancel_at_any_step_returns_every_pin(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Cancelled when it is looked at for the first, second ... time; each failed load makes it run again."""
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages")
    histories = evicted_users(engine, 3)
    original, looked = engine.moves.onloader._load_layer, 0

    def failing(task: Any, layer: int, guard: Any) -> None:
        engine.streams.onload.submit(guard(burn))
        original(task, layer, guard)

    def cancelled() -> bool:
        nonlocal looked
        looked += 1
        return looked > looks

    monkeypatch.setattr(engine.moves.onloader, "_load_layer", failing)
    visits = [worlds.request(user, history, CANDIDATES) for user, history in histories.items()]
    outcomes = engine.serve([replace(visits[0], cancelled=cancelled), *visits[1:]])
    assert looks < 2 or looked >= 2, "a failed load makes it run again"
    if looked > looks:
        refusal = outcomes.pop(0)
        histories.pop(1)
        assert isinstance(refusal, RequestError)
        assert refusal.code is Code.CANCELLED
    for outcome, history in zip(outcomes, histories.values(), strict=True):
        worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
    settle(engine)
    engine.manager.check()
    assert pins(engine) == 0


# --- double release --------------------------------------------------------------------------------------------------


def test_a_double_release_raises_and_changes_nothing() -> None:
    """LMCache 5090 clamped it to zero."""
    pool = SlotPool("pages", 8)
    taken = pool.allocate(3)
    pool.release(taken[:1])
    for again in (taken, taken[:1], np.array([7])):
        with pytest.raises(SlotError, match="not held"):
            pool.release(again)
    pool.check(np.array([0, 1, 1, 0, 0, 0, 0, 0], dtype=np.int32))


def test_what_is_done_or_undone_twice_raises() -> None:
    manager = CacheManager(Geometry(4, 8, 8, 2, 2), lambda length: 0, 1000, 10**6)
    history = worlds.random_history(np.random.default_rng(7), 16)
    look_up = manager.look_up(Visit(1, history.since(0)))
    lease = manager.prepare(look_up)
    assert lease is not None
    manager.commit(lease)
    with pytest.raises(PinError):
        manager.commit(lease)
    with pytest.raises(PinError):
        manager.forgo(LookUp(look_up.visit, UserRecord(2, TokenLog()), look_up.comparison))
    (task,) = manager.plan_offloads()
    manager.offload_done(task, failed=False)
    with pytest.raises(KeyError):
        manager.offload_done(task, failed=False)


# --- config keys ignored ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"host_cach": "1GiB"}, "did you mean 'host_cache'?"),
        ({"offload_quota": "5"}, "did you mean 'offload_quota_tokens'?"),
        ({"cache_mode": "host"}, "cache_mode"),
        ({"page_tokens": "many"}, "page_tokens"),
        ({"page_tokens": "7", "chunk_tokens": "20"}, "chunk_tokens (20) must be a multiple of page_tokens (7)"),
    ],
)
def test_no_key_and_no_value_is_ignored(parameters: dict[str, str], said: str) -> None:
    """LMCache 2787."""
    with pytest.raises(ConfigError) as refusal:
        Config.from_parameters(parameters)
    assert said in str(refusal.value)


# --- shutdown hangs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", ["compute", "onload", "scatter", "offload"])
def test_the_end_is_bounded_with_a_stream_that_is_stuck(lively: Lively, stuck: str) -> None:
    """LMCache 265."""
    _, folder = lively
    service = RankingService(worlds.engine(folder), request_timeout_s=0.5)
    release = threading.Event()
    getattr(service.engine.streams, stuck).submit(lambda: release.wait(30) and None)
    history = worlds.random_history(np.random.default_rng(8), 40)
    service.rank([worlds.request(1, history, CANDIDATES)])
    begin = time.monotonic()
    service.close(1)
    assert time.monotonic() - begin < 3
    release.set()


def test_the_end_is_bounded_by_one_deadline_for_all_streams(lively: Lively) -> None:
    """Streams that end one just after the other must not add up to Triton's whole exit timeout."""
    _, folder = lively
    engine = worlds.engine(folder, host_memory="pageable")
    for number, stream in enumerate(engine.streams.all(), 1):
        stream.submit(lambda seconds=0.4 * number: time.sleep(seconds))  # type: ignore[misc]
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        engine.close(0.6)
    assert time.monotonic() - begin < 1.5


def test_the_end_answers_what_was_accepted(lively: Lively) -> None:
    model, folder = lively
    service = RankingService(worlds.engine(folder), request_timeout_s=30)
    history = worlds.random_history(np.random.default_rng(9), 40)
    service.engine.streams.compute.submit(lambda: time.sleep(0.5))
    outcomes: list[Any] = []
    caller = threading.Thread(
        target=lambda: outcomes.extend(service.rank([worlds.request(1, history, CANDIDATES)])), daemon=True
    )
    caller.start()
    time.sleep(0.1)
    service.close(5)
    caller.join(5)
    worlds.assert_scores(outcomes[0], worlds.reference(model, history, CANDIDATES))
    (late,) = service.rank([worlds.request(1, history, CANDIDATES)])
    assert isinstance(late, RequestError)
    assert late.code is Code.UNAVAILABLE


# --- a transfer that never completes ---------------------------------------------------------------------------------


@HOST
def test_saves_that_never_complete_hold_no_request(lively: Lively, host_memory: str) -> None:
    """vllm 49828. What is not saved is not evicted; users without room are computed without being kept."""
    model, folder = lively
    engine = worlds.engine(folder, device_cache="12 pages", transfer_timeout_s=0.1, host_memory=host_memory)
    release = threading.Event()
    engine.streams.offload.submit(lambda: release.wait(60) and None)
    rng = np.random.default_rng(10)
    begin = time.monotonic()
    for user in range(1, 6):
        (answer,) = check(engine, model, {user: worlds.random_history(rng, 32)})
        assert isinstance(answer, RankAnswer)
    assert time.monotonic() - begin < 10
    assert any(isinstance(task, OffloadTask) for task in engine.manager.tasks)
    release.set()
    settle(engine)
    assert pins(engine) == 0
    engine.manager.check()
    engine.close(5)


# --- saves that chase each other -------------------------------------------------------------------------------------


@pytest.mark.parametrize("users", [2, 3, 6])
@pytest.mark.parametrize("quota", [8, 1000])
def test_the_tiers_come_to_rest_when_the_host_is_too_small(
    lively: Lively, start_engine: StartEngine, users: int, quota: int
) -> None:
    """A save that evicts what another one has just saved, and the other way round, would go on for ever."""
    model, folder = lively
    engine = start_engine(folder, device_cache="80 pages", host_cache="4 chunks", offload_quota_tokens=quota)
    rng = np.random.default_rng(11)
    histories = {user: worlds.random_history(rng, 42) for user in range(1, users + 1)}
    check(engine, model, histories)
    quiet, deadline = 0, time.monotonic() + 2
    while quiet < 3:
        engine.idle()
        quiet = 0 if engine.manager.tasks else quiet + 1
        assert time.monotonic() < deadline, "the tiers do not come to rest"
        time.sleep(0.001)
    check(engine, model, histories)
