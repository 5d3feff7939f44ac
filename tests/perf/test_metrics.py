"""HR and NDCG against truths computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.metrics import quality, rank_by_score, rank_in_list


def test_by_hand() -> None:
    found = quality([0, 1, 2, 9, 10, None, 400])
    assert found.users == 7
    assert found.hr == pytest.approx(4 / 7)
    # 1/log2(2) + 1/log2(3) + 1/log2(4) + 1/log2(11), the rest lie beyond the tenth place.
    assert found.ndcg == pytest.approx((1 + 0.6309297535714574 + 0.5 + 0.2890648263178879) / 7)


def test_another_k_and_nobody() -> None:
    assert quality([0, 1, 2], k=2).hr == pytest.approx(2 / 3)
    assert quality([0, 1, 2], k=2).ndcg == pytest.approx((1 + 1 / math.log2(3)) / 3)
    assert (quality([]).users, quality([]).hr, quality([]).ndcg) == (0, 0.0, 0.0)


def test_equal_scores_keep_the_candidates_order() -> None:
    scores = np.array([0.5, 2.0, 0.5, 0.5, -np.inf])
    assert [rank_by_score(scores, item) for item in range(5)] == [1, 0, 2, 3, 4]


def test_a_ranking_cut_at_k() -> None:
    assert rank_in_list([30, 10, 20], 10) == 1
    assert rank_in_list(np.array([30, 10, 20]), 40) is None


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_scores_and_the_sorted_list_agree(values: list[int], data: st.DataObject) -> None:
    scores = np.array(values, dtype=np.float32)
    target = data.draw(st.integers(0, len(values) - 1))
    ranking = np.argsort(-scores, kind="stable")
    assert rank_by_score(scores, target) == rank_in_list(ranking, target)
