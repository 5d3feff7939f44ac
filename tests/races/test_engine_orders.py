"""The orders that the engine and its moves are responsible for: transfers after the compute submitted before them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mtserve_backend.cache.history import Tokens
from mtserve_backend.engine import Engine
from mtserve_backend.kernels import copies
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.transfer.streams import CpuStream
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, grown, settle
from tests.engine.test_faults import check, evicted_users
from tests.races.bench import GRACE_S, hold

Lively = tuple[HSTU, Path]
StartEngine = Callable[..., Engine]
HOST = pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
NOBODY = np.empty(0, dtype=np.int64)
FORGET = RankRequest(1, Tokens(0, NOBODY, NOBODY.astype(np.int32)), NOBODY, forget=True)


@pytest.fixture(params=["target"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lively:
    folder = tmp_path_factory.mktemp("lively")
    return worlds.lively_model(folder, request.param), folder


@contextmanager
def slow_zeroing() -> Iterator[None]:
    """Overwriting freed memory takes a while."""
    original = copies.zero

    def slow(*arguments: object) -> None:
        time.sleep(0.1)
        original(*arguments)  # type: ignore[arg-type]

    copies.zero = slow
    try:
        yield
    finally:
        copies.zero = original


@HOST
def test_the_engine_starts_loads_after_the_compute_before_them(
    lively: Lively, start_engine: StartEngine, host_memory: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="20 pages", host_memory=host_memory)
    histories = evicted_users(engine, 3)
    pool, same = engine._pools.device, []

    def read_slowly() -> None:
        before = pool.clone()
        time.sleep(GRACE_S)
        same.append(torch.equal(before, pool))

    engine.streams.compute.submit(read_slowly)
    (answer,) = check(engine, model, {1: histories[1]})
    assert answer.cache.host == 32
    assert same == [True]


@HOST
def test_the_engine_starts_saves_after_the_compute_before_them(
    lively: Lively, start_engine: StartEngine, host_memory: str
) -> None:
    _, folder = lively
    engine = start_engine(folder, device_cache="12 pages", host_memory=host_memory)
    history = worlds.random_history(np.random.default_rng(2), 37)
    engine.serve([worlds.request(1, history, CANDIDATES)])
    settle(engine)
    record = engine.manager.users.get(1)
    assert record is not None
    assert record.host_length == 32
    tail, pools = int(record.pages[8]), engine._pools
    hold(engine.streams.compute)  # type: ignore[arg-type]

    def write() -> None:
        pools.device[:, tail] = 7.5

    engine.streams.compute.submit(write)
    engine.idle()
    settle(engine)
    assert record.host_length == 37
    assert (pools.host[int(record.chunks[-1]), :, 0] == 7.5).all()


@HOST
def test_freed_pages_are_overwritten_before_their_next_owner_writes(
    lively: Lively, start_engine: StartEngine, host_memory: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages", zero_on_free=True, host_memory=host_memory)
    rng = np.random.default_rng(3)
    histories = {user: worlds.random_history(rng, 32) for user in (1, 2)}
    with slow_zeroing():
        for user in (1, 2, 1, 2):
            (answer,) = check(engine, model, {user: histories[user]})
            settle(engine)
            (answer,) = check(engine, model, {user: histories[user]})
            assert answer.cache.device == 32
    assert engine.manager.counters.device_evictions == 3
    assert engine.manager.counters.onloaded == 64


@HOST
def test_freed_chunks_are_overwritten_before_their_next_owner_writes(
    lively: Lively, start_engine: StartEngine, host_memory: str
) -> None:
    model, folder = lively
    engine = start_engine(
        folder, device_cache="12 pages", host_cache="4 chunks", zero_on_free=True, host_memory=host_memory
    )
    rng = np.random.default_rng(4)
    with slow_zeroing():
        for user in (1, 2, 3):
            history = worlds.random_history(rng, 32)
            check(engine, model, {user: history})
            settle(engine)
            check(engine, model, {10 + user: worlds.random_history(rng, 7), 20 + user: worlds.random_history(rng, 7)})
            check(engine, model, {30 + user: worlds.random_history(rng, 7), 40 + user: worlds.random_history(rng, 7)})
            settle(engine)
            (answer,) = check(engine, model, {user: history})
            assert answer.cache.host == 32
    assert engine.manager.counters.host_evictions == 2


@HOST
def test_a_forget_is_answered_when_the_state_is_overwritten(
    lively: Lively, start_engine: StartEngine, host_memory: str
) -> None:
    _, folder = lively
    engine = start_engine(folder, zero_on_free=True, host_memory=host_memory)
    history = worlds.random_history(np.random.default_rng(5), 40)
    engine.serve([worlds.request(1, history, CANDIDATES)])
    settle(engine)
    assert torch.count_nonzero(engine._pools.host)
    with slow_zeroing():
        (outcome,) = engine.serve([replace(FORGET)])
        assert isinstance(outcome, RankAnswer)
        assert torch.count_nonzero(engine._pools.device) == 0
        assert torch.count_nonzero(engine._pools.host) == 0


def test_answers_are_taken_when_they_are_computed(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rng = np.random.default_rng(6)
    history = worlds.random_history(rng, 10)
    for _ in range(3):
        hold(engine.streams.compute, 0.05)  # type: ignore[arg-type]
        history = grown(rng, history, 3)
        check(engine, model, {1: history})


def test_scores_are_read_when_the_device_has_them(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the copy of the scores is issued and goes on by itself; an event of the compute stream says when."""
    model, folder = lively
    engine = start_engine(folder)
    dma, record = CpuStream("dma", 10), engine.streams.compute.record

    def issue(scores: torch.Tensor) -> torch.Tensor:
        arriving = torch.full_like(scores, torch.nan)
        hold(dma, 0.05)
        dma.submit(lambda: np.copyto(arriving.numpy(), scores.numpy()))
        return arriving

    class Behind:
        """Issued when the stream has come so far, done when the copies have."""

        def __init__(self) -> None:
            self._issued = record()

        def issued(self, timeout_s: float | None) -> None:
            self._issued.wait(timeout_s)

        def wait(self, timeout_s: float | None) -> None:
            self._issued.wait(timeout_s)
            dma.record().wait(timeout_s)

    monkeypatch.setattr(copies, "to_host", issue)
    monkeypatch.setattr(engine.streams.compute, "record", Behind)
    monkeypatch.setattr(engine.moves, "save", lambda plan: None)
    histories = {user: worlds.random_history(np.random.default_rng(user), 10) for user in (1, 2)}
    check(engine, model, histories)
    dma.close(10)
