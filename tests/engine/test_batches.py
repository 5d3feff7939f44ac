"""A batch is any batch: duplicates, no candidates, nothing new, strangers, too long, whole and delta mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtserve_backend.engine import Engine
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import Code, RankAnswer, RequestError
from tests.engine import worlds
from tests.engine.worlds import History

Lively = tuple[HSTU, Path]
StartEngine = Callable[..., Engine]

CANDIDATES = np.arange(0, worlds.ITEMS, 5)


def grown(rng: np.random.Generator, history: History, count: int) -> History:
    more = worlds.random_history(rng, count)
    return History(np.concatenate((history.items, more.items)), np.concatenate((history.actions, more.actions)))


def settle(engine: Engine) -> None:
    """Let every transfer finish."""
    engine.upkeep()
    while engine.manager.tasks:
        assert engine.moves.await_one()
    engine.upkeep()


def test_one_event_changed_long_ago_moves_the_scores(lively: Lively) -> None:
    """Without this, no test of exactness here would prove anything."""
    model, _ = lively
    history = worlds.random_history(np.random.default_rng(1), 60)
    changed = History(history.items.copy(), history.actions.copy())
    changed.items[3] = (changed.items[3] + 1) % worlds.ITEMS
    before, after = (worlds.reference(model, h, CANDIDATES) for h in (history, changed))
    assert np.abs(before - after).max() > 1e3 * worlds.TOLERANCE * np.abs(before).max()


def test_a_user_several_times_in_one_batch_is_as_if_one_after_the_other(
    lively: Lively, start_engine: StartEngine
) -> None:
    _model, folder = lively
    rng = np.random.default_rng(2)
    visits = [worlds.random_history(rng, 20)]
    for _ in range(4):
        visits.append(grown(rng, visits[-1], 3))
    other = worlds.random_history(rng, 11)
    requests = [worlds.request(7, visit, CANDIDATES) for visit in visits]
    requests.insert(2, worlds.request(8, other, CANDIDATES))
    together = start_engine(folder).serve(requests)
    one_by_one = start_engine(folder)
    for outcome, request in zip(together, requests, strict=True):
        (alone,) = one_by_one.serve([request])
        assert isinstance(alone, RankAnswer)
        answer = worlds.assert_scores(outcome, alone.scores)
        assert answer.cache == alone.cache
    assert isinstance(together[-1], RankAnswer)
    assert together[-1].cache.new == 3


def test_the_second_visit_of_a_duplicate_is_a_device_hit(lively: Lively, start_engine: StartEngine) -> None:
    _, folder = lively
    history = worlds.random_history(np.random.default_rng(3), 30)
    first, second = start_engine(folder).serve([worlds.request("u", history, CANDIDATES)] * 2)
    assert isinstance(first, RankAnswer)
    assert isinstance(second, RankAnswer)
    assert (first.cache.new, first.cache.device) == (30, 0)
    assert (second.cache.new, second.cache.device) == (0, 30)
    np.testing.assert_allclose(first.scores, second.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["hierarchical", "device", "recompute"])
def test_nothing_new_and_nothing_to_score(lively: Lively, start_engine: StartEngine, mode: str) -> None:
    model, folder = lively
    engine = start_engine(folder, cache_mode=mode)
    history = worlds.random_history(np.random.default_rng(4), 33)
    nobody_asks = np.empty(0, dtype=np.int64)
    (warmed,) = engine.serve([worlds.request(1, history, nobody_asks)])
    assert isinstance(warmed, RankAnswer)
    assert warmed.scores.shape == (0, len(model.tasks))
    assert len(warmed.ranking) == 0
    (again,) = engine.serve([worlds.request(1, history, nobody_asks, start=33)])
    assert isinstance(again, RankAnswer)
    (scored,) = engine.serve([worlds.request(1, history, CANDIDATES, start=33)])
    worlds.assert_scores(scored, worlds.reference(model, history, CANDIDATES))


def test_an_empty_history(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    empty = worlds.random_history(np.random.default_rng(0), 0)
    (outcome,) = engine.serve([worlds.request(1, empty, CANDIDATES)])
    if model.scores_last_row:
        assert isinstance(outcome, RequestError)
        assert outcome.code is Code.INVALID_ARG
        assert "at least one event" in str(outcome)
    else:
        worlds.assert_scores(outcome, worlds.reference(model, empty, CANDIDATES))


def test_candidates_permuted_split_or_repeated_keep_their_scores(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    history = worlds.random_history(np.random.default_rng(5), 41)
    expected = worlds.reference(model, history, CANDIDATES)
    scale = np.abs(expected).max()
    rng = np.random.default_rng(6)
    order = rng.permutation(len(CANDIDATES))
    (permuted,) = engine.serve([worlds.request(1, history, CANDIDATES[order])])
    worlds.assert_scores(permuted, expected[order])
    for at in range(len(CANDIDATES)):
        (one,) = engine.serve([worlds.request(1, history, CANDIDATES[at : at + 1])])
        assert isinstance(one, RankAnswer)
        assert np.abs(one.scores - expected[at : at + 1]).max() <= worlds.TOLERANCE * scale
    many = np.tile(CANDIDATES, 50)
    (thousand,) = engine.serve([worlds.request(1, history, many)])
    worlds.assert_scores(thousand, np.tile(expected, (50, 1)))


def test_ranking_is_by_the_first_task_best_first_and_ties_keep_their_order(
    lively: Lively, start_engine: StartEngine
) -> None:
    _model, folder = lively
    history = worlds.random_history(np.random.default_rng(7), 20)
    candidates = np.array([9, 3, 9, 40, 3, 17])
    request = worlds.request(1, history, candidates)
    (answer,) = start_engine(folder).serve([request])
    assert isinstance(answer, RankAnswer)
    expected = sorted(range(6), key=lambda i: (-answer.scores[i, 0], i))
    assert answer.ranking.tolist() == candidates[expected].tolist()


def test_a_history_longer_than_the_device_cache_is_still_answered(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="5 pages")
    rng = np.random.default_rng(8)
    long, short = worlds.random_history(rng, 70), worlds.random_history(rng, 10)
    for _ in range(2):
        outcomes = engine.serve([worlds.request(u, h, CANDIDATES) for u, h in ((1, long), (2, short), (3, long))])
        for outcome, history in zip(outcomes, (long, short, long), strict=True):
            worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))


def test_more_users_than_the_device_holds_run_in_several_waves(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages")
    rng = np.random.default_rng(9)
    histories = [worlds.random_history(rng, 30) for _ in range(6)]
    for _ in range(3):
        outcomes = engine.serve([worlds.request(u, h, CANDIDATES) for u, h in enumerate(histories, 1)])
        for outcome, history in zip(outcomes, histories, strict=True):
            worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))


def test_histories_past_the_window_keep_being_served(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rng = np.random.default_rng(10)
    history = worlds.random_history(rng, 80)
    rebuilt = 0
    for _ in range(40):
        history = grown(rng, history, 3)
        (outcome,) = (
            engine.serve([worlds.request(1, history, CANDIDATES, start=len(history) - 3)])
            if rebuilt
            else (engine.serve([worlds.request(1, history, CANDIDATES)]))
        )
        answer = worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
        rebuilt += answer.cache.device == 0
        assert answer.cache.history_length == len(history)
    assert rebuilt == 1 + -(-(len(history) - worlds.MAX_HISTORY) // worlds.STRIDE)


def test_a_returning_user_is_loaded_from_the_host(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder, device_cache="12 pages")
    rng = np.random.default_rng(11)
    histories = {user: worlds.random_history(rng, 36) for user in (1, 2)}
    for user, history in histories.items():
        engine.serve([worlds.request(user, history, CANDIDATES)])
        settle(engine)
    histories[1] = grown(rng, histories[1], 2)
    (outcome,) = engine.serve([worlds.request(1, histories[1], CANDIDATES, start=36)])
    answer = worlds.assert_scores(outcome, worlds.reference(model, histories[1], CANDIDATES))
    assert answer.cache.host == 32
    assert answer.cache.recomputed == 4
    assert answer.cache.new == 2
    settle(engine)
    assert engine.manager.counters.onloaded == 32


def test_a_stranger_is_scored_and_leaves_no_trace(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    history = worlds.random_history(np.random.default_rng(12), 20)
    for outcome in engine.serve([worlds.request(None, history, CANDIDATES)] * 2):
        answer = worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
        assert answer.cache.new == 20
    assert not len(engine.manager.users)


def test_a_gap_says_what_is_needed_and_harms_nobody(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rng = np.random.default_rng(13)
    mine, theirs = worlds.random_history(rng, 30), worlds.random_history(rng, 20)
    engine.serve([worlds.request(1, History(mine.items[:12], mine.actions[:12]), CANDIDATES)])
    gap, unknown, fine = engine.serve(
        [
            worlds.request(1, mine, CANDIDATES, start=15),
            worlds.request(99, mine, CANDIDATES, start=15),
            worlds.request(2, theirs, CANDIDATES),
        ]
    )
    assert isinstance(gap, RequestError)
    assert isinstance(unknown, RequestError)
    assert (gap.code, unknown.code) == (Code.NOT_FOUND, Code.NOT_FOUND)
    assert "needed from position 12" in str(gap)
    assert "needed from position 0" in str(unknown)
    worlds.assert_scores(fine, worlds.reference(model, theirs, CANDIDATES))
    (outcome,) = engine.serve([worlds.request(1, mine, CANDIDATES, start=12)])
    assert worlds.assert_scores(outcome, worlds.reference(model, mine, CANDIDATES)).cache.device == 12


def test_integer_and_string_ids_are_different_users(lively: Lively, start_engine: StartEngine) -> None:
    model, folder = lively
    engine = start_engine(folder)
    rng = np.random.default_rng(14)
    histories = {5: worlds.random_history(rng, 20), "5": worlds.random_history(rng, 25)}
    for _ in range(2):
        for user, history in histories.items():
            (outcome,) = engine.serve([worlds.request(user, history, CANDIDATES)])
            answer = worlds.assert_scores(outcome, worlds.reference(model, history, CANDIDATES))
    assert answer.cache.device == 25
    assert len(engine.manager.users) == 2
