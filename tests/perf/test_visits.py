"""Visits: nothing lost, nothing seen too early, the same for the same seed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perf.movielens import History
from perf.visits import SyntheticUsers, movielens_visits


def history(timestamps: list[int], first_item: int = 1) -> History:
    items = np.arange(first_item, first_item + len(timestamps), dtype=np.int64)
    return History("u", items, np.ones(len(items), dtype=np.int32), np.array(timestamps, dtype=np.int64))


def test_a_visit_ends_with_a_gap_or_when_it_is_full_and_the_last_event_is_held_out() -> None:
    times = [0, 1, 2, 100, 101, 102, 103, 104, 5000]
    visits = movielens_visits([history(times)], items=20, gap_s=50, events=4)
    assert [(visit.new, visit.items.tolist(), visit.target) for visit in visits] == [
        (3, [1, 2, 3], None),
        (4, [1, 2, 3, 4, 5, 6, 7], None),
        (1, [1, 2, 3, 4, 5, 6, 7, 8], 9),
    ]
    assert visits[0].candidates.tolist() == list(range(1, 20)), "all items, the unknown one (0) not among them"


def test_users_take_turns_in_time_order() -> None:
    visits = movielens_visits([history([0, 1, 90, 95]), history([40, 41, 99])], items=9, gap_s=10)
    assert [(visit.user, len(visit.items)) for visit in visits] == [(1, 2), (2, 2), (1, 3)]
    assert [visit.target for visit in visits] == [None, 3, 4]


@given(
    st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=30).map(sorted), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(1, 8),
)
def test_every_event_but_the_last_arrives_exactly_once(times: list[list[int]], gap_s: int, events: int) -> None:
    histories = [history(own) for own in times]
    visits = movielens_visits(histories, items=31, gap_s=gap_s, events=events)
    for user, own in enumerate(histories, start=1):
        mine = [visit for visit in visits if visit.user == user]
        known = 0
        for visit in mine:
            assert 1 <= visit.new <= events
            known += visit.new
            assert visit.items.tolist() == own.items[:known].tolist()
        assert known == len(own) - 1
        assert [visit.target for visit in mine if visit.target is not None] == own.items[-1:].tolist() * bool(mine)


def test_made_up_users_go_on_where_they_were_and_the_same_seed_says_the_same() -> None:
    first, second = (SyntheticUsers(items=50, actions=3, seed=7) for _ in range(2))
    for people in (first, second):
        people.visit(1, new=5, candidates=4)
        people.visit(2, new=3, candidates=0)
    again, same = first.visit(1, new=2, candidates=10), second.visit(1, new=2, candidates=10)
    assert again.items.tolist() == same.items.tolist()
    assert (len(again.items), again.new, len(set(again.candidates.tolist()))) == (7, 2, 10)
    assert again.items.max() < 50
    assert again.actions.max() < 3
    assert (again.items.dtype, again.actions.dtype, again.candidates.dtype) == (np.int64, np.int32, np.int64)
    assert first.order([1, 2, 3], 20) == second.order([1, 2, 3], 20)
