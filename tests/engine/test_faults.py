"""Every failure ends in a recompute or in an error for the one request, never in a wrong score."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtserve_backend import moves
from mtserve_backend.cache.records import OnloadTask
from mtserve_backend.engine import Engine
from mtserve_backend.kernels import copies
from mtserve_backend.models.contract import Attention
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import Code, RankAnswer, RequestError
from mtserve_backend.service import RankingService
from mtserve_backend.transfer import offload
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, grown, settle
from tests.engine.worlds import History

Lively = tuple[HSTU, Path]
StartEngine = Callable[..., Engine]


def evicted_users(engine: Engine, count: int = 2) -> dict[int, History]:
    """Users of 32 tokens that are whole on the host and, all but the last, gone from a device of 12 pages."""
    rng = np.random.default_rng(1)
    histories = {user: worlds.random_history(rng, 32) for user in range(1, count + 1)}
    for user, history in histories.items():
        engine.serve([worlds.request(user, history, CANDIDATES)])
        settle(engine)
    return histories


def burn() -> None:
    raise OSError("the bus is on fire")


def check(engine: Engine, model: HSTU, histories: dict[int, History]) -> list[RankAnswer]:
    outcomes = engine.serve([worlds.request(user, history, CANDIDATES) for user, history in histories.items()])
    return [
        worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
        for outcome, history in zip(outcomes, histories.values(), strict=True)
    ]


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("stage", ["_load_layer", "_scatter_layer"])
def test_a_failed_load_is_never_counted_as_loaded(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, layer: int, stage: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages")
    histories = evicted_users(engine, 3)
    original = getattr(engine.moves.onloader, stage)

    def failing(handles: Any, at: int) -> None:
        for handle in handles:
            if at == layer and handle.task.record.user == 1:
                engine.moves.onloader._guarded(handle, burn)
        original(handles, at)

    monkeypatch.setattr(engine.moves.onloader, stage, failing)
    answers = check(engine, model, histories)
    if stage == "_load_layer":
        assert answers[0].cache.host == 0
        assert answers[0].cache.recomputed == 32
    settle(engine)
    assert engine.manager.counters.onload_failures == 1
    monkeypatch.undo()
    for _ in range(3):
        check(engine, model, histories)


def test_a_load_that_never_arrives_is_given_up_and_its_pages_stay_held(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages", transfer_timeout_s=0.2)
    histories = evicted_users(engine, 3)
    stuck, original = threading.Event(), engine.moves.onloader._load_layer

    def slow(handles: Any, layer: int) -> None:
        stuck.wait(30)
        original(handles, layer)

    monkeypatch.setattr(engine.moves.onloader, "_load_layer", slow)
    begin = time.monotonic()
    answers = check(engine, model, {1: histories[1]})
    assert time.monotonic() - begin < 10
    assert answers[0].cache.recomputed == 32
    (task,) = (task for task in engine.manager.tasks if isinstance(task, OnloadTask))
    assert all(engine.manager.tiers.chunks.references(int(chunk)) for chunk in task.held_chunks)
    check(engine, model, {3: histories[3]})
    stuck.set()
    settle(engine)
    monkeypatch.undo()
    check(engine, model, histories)


def test_pages_under_a_slow_offload_are_not_handed_out(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages")
    hold = threading.Event()
    engine.streams.offload.submit(lambda: hold.wait(30) and None)
    rng = np.random.default_rng(3)
    first, second = worlds.random_history(rng, 32), worlds.random_history(rng, 16)
    engine.serve([worlds.request(1, first, CANDIDATES)])
    (task,) = engine.manager.tasks
    held = set(task.held_pages.tolist())
    threading.Timer(0.3, hold.set).start()
    check(engine, model, {2: second})
    record = engine.manager.users.get(2)
    assert record is not None
    assert hold.is_set() or not held & set(record.pages.tolist())
    settle(engine)
    check(engine, model, {1: first, 2: second})


@pytest.mark.parametrize("change", ["cut inside", "cut at the start", "grow"])
def test_a_history_rewritten_under_a_slow_offload(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Another history's bytes must never be taken for this one's, nor pages written while they are being read."""
    model, folder = lively
    engine = start_engine(folder, device_cache="30 pages")
    hold, original = threading.Event(), offload.Offloader.save

    def watched(self: offload.Offloader, task: Any, after: Any) -> None:
        """The pages must be the same before and after they are copied."""
        before: list[torch.Tensor] = []
        pages = torch.from_numpy(task.held_pages)
        device = engine._pools.device
        engine.streams.offload.wait(after)
        engine.streams.offload.submit(lambda: hold.wait(30) and None)
        engine.streams.offload.submit(lambda: before.append(device[:, pages].clone()))
        original(self, task, after)
        engine.streams.offload.submit(lambda: changed.append(not torch.equal(before[0], device[:, pages])))

    changed: list[bool] = []
    monkeypatch.setattr(offload.Offloader, "save", watched)
    rng = np.random.default_rng(4)
    history = worlds.random_history(rng, 32)
    check(engine, model, {1: history})
    kept = {"cut inside": 13, "cut at the start": 0, "grow": 32}[change]
    rewritten = grown(rng, History(history.items[:kept], history.actions[:kept]), 30)
    check(engine, model, {1: rewritten})
    hold.set()
    settle(engine)
    check(engine, model, {user: worlds.random_history(rng, 40) for user in (2, 3)})
    settle(engine)
    check(engine, model, {1: rewritten})
    assert changed
    assert not any(changed)


def test_a_failed_offload_loses_no_score(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages")

    def failing(*_: Any) -> None:
        raise OSError("no space left on the bus")

    monkeypatch.setattr(offload.copies, "gather_pages", failing)
    rng = np.random.default_rng(5)
    histories = {user: worlds.random_history(rng, 32) for user in (1, 2)}
    for user, history in histories.items():
        check(engine, model, {user: history})
        settle(engine)
    assert engine.manager.counters.offload_failures == 1
    idle_for(engine, moves.SAVE_PAUSE_S / 2)
    assert engine.manager.counters.offload_failures == 1, "a save that failed was tried again at once"
    idle_for(engine, 2 * moves.SAVE_PAUSE_S)
    assert 2 <= engine.manager.counters.offload_failures <= 6
    monkeypatch.undo()
    idle_for(engine, 2 * moves.SAVE_PAUSE_S)
    assert engine.manager.counters.on_host == 32
    check(engine, model, histories)


def test_a_retry_counts_as_new_what_was_new(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages", check_books=True)
    histories = evicted_users(engine, 3)
    grown_history = grown(np.random.default_rng(9), histories[1], 5)
    monkeypatch.setattr(copies, "copy_pages", lambda *_: burn())
    (answer,) = check(engine, model, {1: grown_history})
    monkeypatch.undo()
    assert engine.manager.counters.onload_failures == 1
    assert (answer.cache.device, answer.cache.host) == (0, 0)
    assert (answer.cache.recomputed, answer.cache.new) == (32, 5)


def test_wrong_books_end_the_service_when_they_are_checked(lively: Lively) -> None:
    _, folder = lively
    history = worlds.random_history(np.random.default_rng(10), 9)
    for checked in (False, True):
        service = RankingService(worlds.engine(folder, check_books=checked), request_timeout_s=30)
        service.engine.manager.counters.device_gained += 1
        (outcome,) = service.rank([worlds.request(1, history, CANDIDATES)])
        assert isinstance(outcome, RequestError) == checked
        if checked:
            assert "tokens on the device" in str(outcome)
        service.close(5)


def idle_for(engine: Engine, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        engine.idle()
        time.sleep(0.005)


def test_one_request_that_cannot_be_computed_fails_alone(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rng = np.random.default_rng(6)
    histories = {user: worlds.random_history(rng, 20 + user) for user in (1, 2, 3)}
    original = engine.compute.model.encode

    def failing(x: torch.Tensor, attention: Attention) -> torch.Tensor:
        ((_, attend),) = attention.spans()
        (span,) = attend.args  # type: ignore[attr-defined]
        if any(segment.length == 22 for segment in span.pooled.segments):
            raise RuntimeError("not this one")
        return original(x, attention)

    monkeypatch.setattr(engine.compute.model, "encode", failing)
    outcomes = engine.serve([worlds.request(user, history, CANDIDATES) for user, history in histories.items()])
    bad = outcomes.pop(1)
    assert isinstance(bad, RequestError)
    assert bad.code is Code.INTERNAL
    for outcome, history in zip(outcomes, (histories[1], histories[3]), strict=True):
        worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
    monkeypatch.undo()
    check(engine, model, histories)


@pytest.mark.parametrize("name", ["onload", "scatter", "offload"])
def test_a_dead_transfer_stream_is_noticed_and_survived(lively: Lively, tmp_path: Path, name: str) -> None:
    model, folder = lively
    engine = worlds.engine(folder, device_cache="20 pages", transfer_timeout_s=0.2)
    histories = evicted_users(engine, 3)
    assert engine.broken is None

    def die() -> None:
        raise SystemExit("killed")

    getattr(engine.streams, name).submit(die)
    for _ in range(3):
        check(engine, model, histories)
    assert engine.broken is not None
    assert name in engine.broken
    engine.close(5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_slow_streams_change_nothing_but_time(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, seed: int, host_memory: str
) -> None:
    model, folder = lively
    rng = np.random.default_rng(seed)
    engine = start_engine(
        folder, device_cache="26 pages", onload_buffer=f"{rng.integers(0, 20)} pages", host_memory=host_memory
    )
    delays = np.random.default_rng(seed)

    def slowed(work: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            time.sleep(float(delays.choice([0.0, 0.0, 0.004, 0.02])))
            work(*arguments)

        return run

    for stage in ("copy", "copy_pages", "scatter_pages", "gather_pages"):
        monkeypatch.setattr(copies, stage, slowed(getattr(copies, stage)))
    histories = {user: worlds.random_history(rng, int(rng.integers(1, 50))) for user in range(1, 7)}
    for _ in range(25):
        users = rng.choice(list(histories), size=3, replace=False).tolist()
        for user in users:
            history = histories[user]
            if rng.random() < 0.2:
                keep = int(rng.integers(0, len(history) + 1))
                history = History(history.items[:keep], history.actions[:keep])
            histories[user] = grown(rng, history, int(rng.integers(1, 6)))
        check(engine, model, {user: histories[user] for user in users})
    settle(engine)
