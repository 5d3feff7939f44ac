"""What a request must be, and what it is told when it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mtserve_backend.admission import Admission, Limits
from mtserve_backend.cache.history import Tokens
from mtserve_backend.ranking import Code, RankRequest, RequestError, rank

STRICT = Admission(items=10, actions=3, oov_item=None, limits=Limits(5, 4, 8), history_needed=False)


def request(
    items: tuple[int, ...] = (1, 2), actions: tuple[int, ...] | None = None, start: int = 0,
    candidates: tuple[int, ...] = (3, 4), **rest: Any,
) -> RankRequest:  # fmt: skip
    actions = (0,) * len(items) if actions is None else actions
    tokens = Tokens(start, np.array(items, dtype=np.int64), np.array(actions, dtype=np.int32))
    return RankRequest("u", tokens, np.array(candidates, dtype=np.int64), **rest)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (request(start=-1), "HISTORY_START is -1"),
        (request(actions=(0,)), "HISTORY_ITEMS has 2 events and HISTORY_ACTIONS 1"),
        (request(items=(1,) * 6), "6 history events were sent; at most 5"),
        (request(candidates=(1,) * 5), "5 candidates were sent; at most 4"),
        (request(start=2**31 - 2), r"longer than positions can count \(2\^31 - 1\)"),
        (request(top_k=0), "top_k is 0"),
        (request(top_k=-3), "top_k is -3"),
        (request(actions=(0, 3)), r"HISTORY_ACTIONS\[1\] is 3; this model knows actions 0\.\.2"),
        (request(actions=(-1, 0)), r"HISTORY_ACTIONS\[0\] is -1"),
        (request(items=(1, 10)), r"HISTORY_ITEMS\[1\] is 10; this model knows items 0\.\.9"),
        (request(items=(-1, 1)), r"HISTORY_ITEMS\[0\] is -1"),
        (request(candidates=(2, 99)), r"CANDIDATES\[1\] is 99"),
        (replace(request(), user="ü" * 5), "ID has 10 bytes; at most 8"),
        (request(forget=True), "carries no history and no candidates"),
        (replace(request(items=(), candidates=(), forget=True), user=None), "needs the user's ID"),
    ],
)
def test_what_is_wrong_is_refused_and_said(wrong: RankRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        STRICT.check(wrong)
    assert error.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(
    "right",
    [
        request(),
        request(items=(), candidates=()),
        request(items=(1,) * 5, candidates=(1,) * 4),
        request(items=(0, 9), actions=(0, 2), candidates=(0, 9)),
        request(start=2**31 - 3),
        request(top_k=1),
        request(top_k=1000),
        request(items=(), candidates=(), forget=True),
    ],
)
def test_what_is_right_passes(right: RankRequest) -> None:
    STRICT.check(right)


def test_unknown_items_become_the_out_of_vocabulary_row() -> None:
    tolerant = replace(STRICT, oov_item=7)
    tolerant.check(request(items=(1, 10), candidates=(-5, 2)))
    sent = np.array([1, 10, -5, 2])
    assert tolerant.embedded(sent).tolist() == [1, 7, 7, 2]
    assert sent.tolist() == [1, 10, -5, 2], "the caller's arrays are the caller's"


def test_a_digest_of_nothing_is_nothing() -> None:
    sent = request()
    for prefix in (None, 0):
        STRICT.check(replace(sent, tokens=replace(sent.tokens, start=0, prefix=prefix)))
    STRICT.check(replace(sent, tokens=replace(sent.tokens, start=3, prefix=9)))
    with pytest.raises(RequestError, match="prefix_digest is of a history's tokens before HISTORY_START"):
        STRICT.check(replace(sent, tokens=replace(sent.tokens, start=0, prefix=9)))


def test_a_model_that_scores_from_the_last_event_needs_one() -> None:
    picky = replace(STRICT, history_needed=True)
    with pytest.raises(RequestError, match="send at least one event with candidates"):
        picky.check(request(items=()))
    picky.check(request(items=(), candidates=()))
    picky.check(request(items=(), start=3))


@pytest.mark.parametrize(("top_k", "best"), [(None, [7, 8, 9, 5]), (2, [7, 8]), (9, [7, 8, 9, 5])])
def test_ranking_is_by_the_first_task_and_ties_keep_their_order(top_k: int | None, best: list[int]) -> None:
    scores = np.array([[0.1, 9.0], [0.5, 0.0], [0.5, 5.0], [0.3, 1.0]], dtype=np.float32)
    assert rank(scores, np.array([5, 7, 8, 9]), top_k).tolist() == best
