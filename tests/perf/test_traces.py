"""The made-up traces: what they promise of themselves, and what they must share with the published ones."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.traces import feedback
from perf.traces.block import Requests, offsets_of
from perf.traces.events import START_UNIX_S, EventMaker, popular
from perf.traces.generator import chunks, requests
from perf.traces.metadata import TraceError
from perf.traces.published import KUAIRAND_1K, MT, compare, table
from perf.traces.request import Request
from perf.traces.shapes import MT_SHAPE, Shape
from perf.traces.statistics import HistoryBreak, Statistics, StatisticsBuilder, statistics_of

SHAPE = Shape().scaled(0.1)
SMALL_MT = MT_SHAPE.scaled(0.05)


def columns(*rows: Request) -> Requests:
    users, times, lengths, new = (np.array(column) for column in zip(*rows, strict=True))
    return Requests(times.astype(np.float64), users, lengths, offsets_of(new))


@pytest.fixture(scope="module")
def trace() -> list[Request]:
    return list(requests(SHAPE, seed=1))


@pytest.fixture(scope="module")
def statistics() -> Statistics:
    return statistics_of(chunks(SHAPE, seed=1))


@pytest.fixture(scope="module")
def mt() -> Statistics:
    return statistics_of(chunks(SMALL_MT, seed=1))


def test_the_same_seed_gives_the_same_trace(trace: list[Request]) -> None:
    assert trace[:1000] == list(requests(SHAPE, seed=1))[:1000]
    assert trace[:1000] != list(requests(SHAPE, seed=2))[:1000]


def test_the_trace_is_the_same_when_it_is_sorted_on_the_disk(tmp_path: Path, trace: list[Request]) -> None:
    parts = chunks(SHAPE, seed=1, folder=tmp_path, rows_in_memory=5_000)
    first = next(parts)
    assert list(tmp_path.iterdir()), "sorted on the disk"
    assert [*first.each(), *(request for part in parts for request in part.each())] == trace
    assert not list(tmp_path.iterdir()), "and tidied up"


def test_requests_come_in_the_order_of_time(trace: list[Request]) -> None:
    assert all(before.time <= after.time for before, after in pairwise(trace))
    assert trace[0].time > 0
    assert trace[-1].time < (SHAPE.days + 1) * 86_400


@pytest.mark.parametrize("shape", [SHAPE, SMALL_MT])
def test_each_history_goes_on_where_the_last_one_ended(shape: Shape) -> None:
    lengths: dict[int, int] = {}
    for request in requests(shape, seed=1):
        assert request.new >= 1
        assert request.known == lengths.get(request.user, 0)
        lengths[request.user] = request.history_length
    assert len(lengths) == shape.users
    assert max(lengths.values()) <= shape.longest


def test_lengths_and_counts_are_those_published(statistics: Statistics) -> None:
    assert statistics.requests == pytest.approx(KUAIRAND_1K.requests * 0.1, rel=0.1)
    assert statistics.mean_length == pytest.approx(KUAIRAND_1K.mean_length, rel=0.1)
    assert statistics.shortest <= 5
    assert KUAIRAND_1K.longest * 0.8 < statistics.longest <= KUAIRAND_1K.longest
    assert 0.998 < statistics.ceiling < 0.999


def test_lengths_and_counts_of_the_other_shape_are_those_published(mt: Statistics) -> None:
    assert mt.requests == pytest.approx(MT.requests * 0.05, rel=0.06)
    assert mt.mean_length == pytest.approx(MT.mean_length, rel=0.015)
    assert MT.shortest <= mt.shortest < MT.shortest + 100
    assert MT.longest - 10 < mt.longest <= MT.longest


def test_most_users_return_soon_and_some_stay_away_for_long(statistics: Statistics, mt: Statistics) -> None:
    for found in (statistics, mt):
        assert found.median_return_s < 300
        assert found.returns_within_5_minutes > 0.5
        assert found.mean_return_s > 10 * found.median_return_s
        assert found.p99_return_s > 100 * found.median_return_s
        assert 0.0005 < found.returns_after_a_day < 0.02


def test_statistics_of_a_few_requests() -> None:
    found = statistics_of([columns(Request(1, 0.0, 4, 4), Request(2, 5.0, 1, 1)), columns(Request(1, 100.0, 10, 6))])
    assert (found.users, found.requests, found.shortest, found.longest) == (2, 3, 1, 10)
    assert found.mean_length == 5
    assert found.last_lengths_total == 11
    assert found.median_return_s == found.mean_return_s == 100
    assert found.ceiling == pytest.approx(1 - 11 / 15)


def test_statistics_of_one_request_have_no_returns() -> None:
    found = statistics_of([columns(Request(1, 0.0, 4, 4))])
    assert math.isnan(found.median_return_s)
    assert math.isnan(found.returns_after_a_day)
    assert any("median_return_s" in line and line.rstrip().endswith("-") for line in table(compare(found, None)))


def test_a_history_that_does_not_go_on_is_named() -> None:
    builder = StatisticsBuilder()
    builder.add(columns(Request(7, 0.0, 4, 4)))
    with pytest.raises(HistoryBreak, match="request 1: user 7 comes with 5 known and 1 new events, but had 4 after"):
        builder.add(columns(Request(8, 1.0, 2, 2), Request(7, 2.0, 6, 1)))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 100_000)), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_statistics_do_not_depend_on_how_requests_are_grouped(steps: list[tuple[int, int, int]], size: int) -> None:
    lengths: dict[int, int] = {}
    last: dict[int, float] = {}
    rows, gaps, time = [], [], 0.0
    for user, new, pause in steps:
        time += pause / 10
        lengths[user] = lengths.get(user, 0) + new + 1
        rows.append(Request(user, time, lengths[user], new + 1))
        gaps.extend([time - last[user]] if user in last else [])
        last[user] = time
    found = statistics_of(columns(*rows[start : start + size]) for start in range(0, len(rows), size))
    assert (found.users, found.requests) == (len(lengths), len(rows))
    assert found.last_lengths_total == sum(lengths.values())
    assert found.mean_new == pytest.approx(np.mean([row.new for row in rows]))
    if gaps:
        assert found.mean_return_s == pytest.approx(np.mean(gaps))
        middle = np.percentile(gaps, 50, method="inverted_cdf")
        assert found.median_return_s == pytest.approx(middle, rel=0.01, abs=0.002)
        assert found.returns_after_a_day == pytest.approx(np.mean([gap > 86_400 for gap in gaps]))


def test_published_figures_are_compared_at_the_trace_s_scale(mt: Statistics) -> None:
    rows = {row.name: row for row in compare(mt, MT, 0.05)}
    assert rows["requests"].expected == pytest.approx(98_621.9)
    assert rows["longest"].expected == 6_000
    assert rows["requests"].difference == pytest.approx(mt.requests / 98_621.9 - 1)
    assert rows["median_return_s"].published is None
    assert any("1,972,438" in line for line in table(list(rows.values())))


def test_events_follow_in_time_and_the_most_popular_items_come_first() -> None:
    shape = replace(MT_SHAPE, users=3, items=10_000)
    blocks = [block for chunk in chunks(shape, seed=3) for block in EventMaker(shape, 3, 5).blocks(chunk)]
    ends: dict[int, int] = {}
    for arrival in (arrival for block in blocks for arrival in block.arrivals()):
        assert len(arrival.items) == len(arrival.actions) == len(arrival.timestamps) == arrival.new
        assert arrival.timestamps[0] >= ends.get(arrival.user, 0)
        assert (np.diff(arrival.timestamps) >= 0).all()
        assert arrival.timestamps[-1] == math.floor(START_UNIX_S + arrival.time)
        assert len(set(arrival.candidates.tolist())) == 5
        ends[arrival.user] = int(arrival.timestamps[-1])
    items = np.concatenate([block.items for block in blocks])
    assert 1 <= items.min() <= items.max() <= 10_000
    assert max(int(block.actions.max()) for block in blocks) < feedback.ACTIONS


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.3])
def test_popularity_goes_with_the_rank(exponent: float) -> None:
    ranks = popular(np.random.default_rng(0).random(400_000), 1_000, exponent)
    assert (ranks.min(), ranks.max()) == (1, 1_000)
    counts = np.bincount(ranks, minlength=1_001)
    # Sums over octaves: the continuous law differs from Zipf's in its first few ranks only.
    low, high = counts[64:128].sum(), counts[512:1_000].sum() * 512 / 488
    assert high / low == pytest.approx(8 ** (1 - exponent), rel=0.05)


def test_different_candidates_need_enough_items() -> None:
    with pytest.raises(TraceError, match="need at least 20 items, not 19"):
        EventMaker(replace(SHAPE, items=19), 0, candidates=10)
