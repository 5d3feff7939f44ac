"""Forgetting, cancelling, deadlines, tails, and the bound on uncached work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from mtserve_backend.cache.history import Tokens
from mtserve_backend.engine import Engine
from mtserve_backend.kernels import copies
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import Code, RankAnswer, RankRequest, RequestError
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, grown, settle

Lively = tuple[HSTU, Path]
StartEngine = Callable[..., Engine]
NOBODY = np.empty(0, dtype=np.int64)
FORGET = RankRequest(1, Tokens(0, NOBODY, NOBODY.astype(np.int32)), NOBODY, forget=True)


@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_nothing_of_a_forgotten_user_remains(lively: Lively, start_engine: StartEngine, host_memory: str) -> None:
    model, folder = lively
    engine = start_engine(folder, zero_on_free=True, host_memory=host_memory, device_cache="20 pages")
    rng = np.random.default_rng(1)
    histories = {user: worlds.random_history(rng, 33) for user in (1, 2, 3, 1)}
    for user, history in histories.items():
        engine.serve([worlds.request(user, history, CANDIDATES)])
        engine.idle()
        settle(engine)
    log = engine.manager.users.get(1)
    assert log is not None
    tokens = log.log._items
    for user in (1, 2, 3):
        (outcome,) = engine.serve([replace(FORGET, user=user)])
        assert isinstance(outcome, RankAnswer)
    engine.upkeep()
    engine.compute.settle()
    assert not tokens.any()
    assert not len(engine.manager.users)
    assert not engine.manager.log_bytes
    pools = engine._pools
    assert torch.count_nonzero(pools.device) == 0
    assert torch.count_nonzero(pools.host) == 0
    (outcome,) = engine.serve([worlds.request(1, histories[1], CANDIDATES)])
    answer = worlds.assert_scores(outcome, worlds.reference(model, histories[1], CANDIDATES))
    assert answer.cache.new == 33


@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
@pytest.mark.parametrize("call", range(8))
def test_nothing_remains_of_a_transfer_that_failed(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, host_memory: str, call: int
) -> None:
    """Neither in the chunks it had written before, nor in the buffers it went through."""
    _, folder = lively
    engine = start_engine(folder, zero_on_free=True, host_memory=host_memory)
    copy, calls, buffers = copies.copy, count(), []

    def failing(target: torch.Tensor, source: torch.Tensor) -> None:
        buffers.extend((target, source))
        copy(target, source)
        if next(calls) >= call:
            raise OSError("the bus is on fire")

    monkeypatch.setattr(copies, "copy", failing)
    engine.serve([worlds.request(1, worlds.random_history(np.random.default_rng(1), 16), CANDIDATES)])
    settle(engine)
    assert engine.manager.counters.offload_failures == 1
    engine.serve([FORGET])
    assert not any(torch.count_nonzero(buffer) for buffer in buffers)
    assert torch.count_nonzero(engine._pools.host) == 0


def test_forgetting_waits_for_the_copies_that_are_under_way(lively: Lively, start_engine: StartEngine) -> None:
    _, folder = lively
    engine = start_engine(folder, zero_on_free=True, transfer_timeout_s=0.3)
    hold = threading.Event()
    engine.streams.offload.submit(lambda: hold.wait(30) and None)
    history = worlds.random_history(np.random.default_rng(2), 33)
    engine.serve([worlds.request(1, history, CANDIDATES)])
    (outcome,) = engine.serve([FORGET])
    assert isinstance(outcome, RequestError)
    assert outcome.code is Code.UNAVAILABLE
    hold.set()
    (outcome,) = engine.serve([FORGET])
    assert isinstance(outcome, RankAnswer)
    assert torch.count_nonzero(engine._pools.device) == 0
    assert torch.count_nonzero(engine._pools.host) == 0


def test_a_forget_runs_in_its_place_among_the_users_requests(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    history = worlds.random_history(np.random.default_rng(3), 20)
    visit = worlds.request(1, history, CANDIDATES)
    first, forgotten, second = start_engine(folder).serve([visit, FORGET, visit])
    expected = worlds.reference(model, history, CANDIDATES)
    assert isinstance(forgotten, RankAnswer)
    assert worlds.assert_scores(first, expected).cache.new == 20
    assert worlds.assert_scores(second, expected).cache.new == 20


def test_forgetting_carries_nothing_else(lively: Lively, start_engine: StartEngine) -> None:
    _, folder = lively
    history = worlds.random_history(np.random.default_rng(4), 5)
    outcomes = start_engine(folder).serve(
        [replace(worlds.request(1, history, NOBODY), forget=True), replace(FORGET, user=None), FORGET]
    )
    assert [isinstance(outcome, RequestError) for outcome in outcomes] == [True, True, False]


def test_cancelled_and_late_requests_are_dropped_without_work(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rows: list[int] = []
    engine.observe = lambda report: rows.append(report.requests)
    rng = np.random.default_rng(5)
    histories = [worlds.random_history(rng, 12) for _ in range(3)]
    visits = [worlds.request(user, history, CANDIDATES) for user, history in enumerate(histories, 1)]
    visits[0] = replace(visits[0], cancelled=lambda: True)
    visits[1] = replace(visits[1], deadline=time.monotonic() - 1)
    cancelled, late, fine = engine.serve(visits)
    assert isinstance(cancelled, RequestError)
    assert isinstance(late, RequestError)
    assert (cancelled.code, late.code) == (Code.CANCELLED, Code.UNAVAILABLE)
    worlds.assert_scores(fine, worlds.reference(model, histories[2], CANDIDATES))
    assert rows == [1]
    assert [user for user, _ in engine.manager.users.items()] == [3]


def test_an_eviction_loses_nothing_once_tails_are_flushed(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="48 pages", host_cache="80 chunks")
    rng = np.random.default_rng(6)
    histories = {user: worlds.random_history(rng, int(rng.integers(5, 38))) for user in range(1, 15)}
    for _ in range(6):
        for user in rng.permutation(list(histories)).tolist():
            histories[user] = history = grown(rng, histories[user], int(rng.integers(0, 3)))
            (outcome,) = engine.serve([worlds.request(user, history, CANDIDATES)])
            answer = worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
            assert answer.cache.recomputed == 0
            settle(engine)
            engine.idle()
            settle(engine)
    counters = engine.manager.counters
    assert counters.device_evictions > 10
    assert counters.device_evicted_unsaved == 0
    assert counters.host_evictions == 0


@pytest.mark.parametrize("mode", ["recompute", "hierarchical"])
def test_uncached_work_is_cut_into_bounded_spans(
    lively: Lively, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, cache_mode=mode, device_cache="3 pages", pass_tokens=16)
    longest = 0
    for layer in engine.compute.model.layers:  # type: ignore[attr-defined]
        forward = layer.forward

        def watched(x: torch.Tensor, *rest: object, forward: Callable[..., torch.Tensor] = forward) -> torch.Tensor:
            nonlocal longest
            longest = max(longest, len(x))
            return forward(x, *rest)

        monkeypatch.setattr(layer, "forward", watched)
    rng = np.random.default_rng(7)
    histories = [worlds.random_history(rng, length) for length in (90, 3, 61)]
    outcomes = engine.serve([worlds.request(user, history, CANDIDATES) for user, history in enumerate(histories, 1)])
    for outcome, history in zip(outcomes, histories, strict=True):
        worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
    assert 0 < longest <= 16
    assert engine.manager.counters.uncached_requests >= 2
