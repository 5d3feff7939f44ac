"""Cutting events into requests, against a plain model of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.traces.cut import EVENT, Cutter, Rules
from perf.traces.request import Arrival
from perf.traces.sorting import Rows

Event = tuple[int, int, int, int]
"""time_ms, user, item, action"""


def rows_of(events: list[Event]) -> Rows:
    return np.array(events, EVENT)


def cut(events: list[Event], rules: Rules, pieces: int = 1, start: int = 0) -> tuple[list[Arrival], int]:
    rows, cutter = rows_of(events), Cutter(rules)
    blocks = list(cutter.blocks(np.array_split(rows, pieces), start))
    assert [block.problem() for block in blocks] == [None] * len(blocks)
    return [arrival for block in blocks for arrival in block.arrivals()], cutter.beyond_longest


def test_an_interval_of_a_user_is_a_request_at_its_last_event_s_time() -> None:
    events = [(60_000, 1, 11, 1), (61_000, 2, 21, 0), (62_000, 1, 12, 3), (119_999, 2, 22, 0), (120_000, 1, 13, 0)]
    arrivals, left_out = cut(events, Rules(), start=60)
    found = [(one.user, one.time, one.history_length, one.items.tolist(), one.timestamps.tolist()) for one in arrivals]
    assert found == [
        (1, 2.0, 2, [11, 12], [60, 62]),
        (2, 59.999, 2, [21, 22], [61, 119]),
        (1, 60.0, 3, [13], [120]),
    ]
    assert arrivals[0].actions.tolist() == [1, 3]
    assert arrivals[0].actions.dtype == np.int32
    assert left_out == 0


def test_histories_go_on_over_days() -> None:
    day = 86_400_000
    arrivals, _ = cut([(0, 1, 1, 0), (day, 1, 2, 0), (9 * day, 1, 3, 0)], Rules())
    assert [(one.known, one.history_length) for one in arrivals] == [(0, 1), (1, 2), (2, 3)]


def test_what_lies_beyond_the_longest_history_is_left_out_and_counted() -> None:
    events = [(60_000 * minute + second, 1, second, 0) for minute in range(3) for second in range(4)]
    arrivals, left_out = cut(events, Rules(longest_history=6))
    assert [(one.known, one.items.tolist(), one.time) for one in arrivals] == [
        (0, [0, 1, 2, 3], 0.003),
        (4, [0, 1], 60.001),
    ]
    assert left_out == 6


@pytest.mark.parametrize("name", ["interval_ms", "longest_history", "largest_request"])
def test_rules_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, should be at least 1"):
        Rules(**{name: 0})


@dataclass
class Model:
    """One event after the other."""

    rules: Rules
    lengths: dict[int, int] = field(default_factory=dict)
    left_out: int = 0

    def requests(self, events: list[Event]) -> list[tuple[float, int, int, list[int]]]:
        groups: dict[tuple[int, int], list[Event]] = {}
        for event in events:
            groups.setdefault((event[0] // self.rules.interval_ms, event[1]), []).append(event)
        found = []
        for (_, user), group in sorted(groups.items()):
            for start in range(0, len(group), self.rules.largest_request):
                part = group[start : start + self.rules.largest_request]
                kept = part[: self.rules.longest_history - self.lengths.get(user, 0)]
                self.left_out += len(part) - len(kept)
                self.lengths[user] = self.lengths.get(user, 0) + len(kept)
                if kept:
                    found.append((kept[-1][0] / 1000, user, self.lengths[user], [event[2] for event in kept]))
        return sorted(found, key=lambda request: request[:2])


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4), st.integers(1, 99), st.integers(0, 5)), max_size=80),
    st.integers(1, 120),
    st.integers(1, 30),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_requests_are_the_model_s_whatever_the_pieces(
    events: list[Event], interval: int, longest: int, largest: int, pieces: int
) -> None:
    events = sorted(events, key=lambda event: event[0])
    rules, model = Rules(interval, longest, largest), Model(Rules(interval, longest, largest))
    arrivals, left_out = cut(events, rules, pieces)
    assert [(one.time, one.user, one.history_length, one.items.tolist()) for one in arrivals] == model.requests(events)
    assert left_out == model.left_out
