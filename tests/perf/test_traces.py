"""The made-up trace: what it promises of itself, and what it must share with KuaiRand-1K."""

from __future__ import annotations

from itertools import pairwise

import pytest
from perf.traces.kuairand_like import Shape, requests

from perf.traces.published import KUAIRAND_1K, Statistics, statistics_of
from perf.traces.request import Request

SHAPE = Shape().scaled(0.1)


@pytest.fixture(scope="module")
def trace() -> list[Request]:
    return list(requests(SHAPE, seed=1))


@pytest.fixture(scope="module")
def statistics(trace: list[Request]) -> Statistics:
    return statistics_of(trace)


def test_the_same_seed_gives_the_same_trace(trace: list[Request]) -> None:
    assert trace[:1000] == list(requests(SHAPE, seed=1))[:1000]
    assert trace[:1000] != list(requests(SHAPE, seed=2))[:1000]


def test_requests_come_in_the_order_of_time(trace: list[Request]) -> None:
    assert all(before.time <= after.time for before, after in pairwise(trace))
    assert trace[0].time > 0
    assert trace[-1].time < (SHAPE.days + 1) * 86_400


def test_each_history_goes_on_where_the_last_one_ended(trace: list[Request]) -> None:
    lengths: dict[int, int] = {}
    for request in trace:
        assert request.new >= 1
        assert request.known == lengths.get(request.user, 0)
        lengths[request.user] = request.history_length
    assert len(lengths) == SHAPE.users
    assert max(lengths.values()) <= SHAPE.longest


def test_lengths_and_counts_are_those_published(statistics: Statistics) -> None:
    assert statistics.requests == pytest.approx(KUAIRAND_1K["requests"] * 0.1, rel=0.1)
    assert statistics.mean_length == pytest.approx(KUAIRAND_1K["mean_length"], rel=0.1)
    assert statistics.shortest <= 5
    assert KUAIRAND_1K["longest"] * 0.8 < statistics.longest <= KUAIRAND_1K["longest"]
    assert 0.998 < statistics.ceiling < 0.999


def test_most_users_return_soon_and_some_stay_away_for_long(statistics: Statistics) -> None:
    assert statistics.median_return_s < 300
    assert statistics.returns_within_5_minutes > 0.5
    assert statistics.mean_return_s > 10 * statistics.median_return_s
    assert 0.0005 < statistics.returns_after_a_day < 0.02


def test_statistics_of_a_few_requests() -> None:
    found = statistics_of([Request(1, 0.0, 4, 4), Request(2, 5.0, 1, 1), Request(1, 100.0, 10, 6)])
    assert (found.users, found.requests, found.shortest, found.longest) == (2, 3, 1, 10)
    assert found.mean_length == 5
    assert found.last_lengths_total == 11
    assert found.median_return_s == 100
    assert found.ceiling == pytest.approx(1 - 11 / 15)
