"""Made-up requests: who comes when, and with how much. The shapes are in `shapes.py`, the events in `events.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perf.traces.block import Requests, offsets_of
from perf.traces.request import Floats, Ints, Request
from perf.traces.shapes import Shape
from perf.traces.sorting import ROWS_IN_MEMORY, ExternalSort, Rows

DAY_S = 86_400.0
ROW = np.dtype([("time", np.float64), ("user", np.int64), ("history_length", np.int64), ("new", np.int64)])


def chunks(
    shape: Shape, seed: int, folder: Path | None = None, rows_in_memory: int = ROWS_IN_MEMORY
) -> Iterator[Requests]:
    """All requests in the order of time, of users 1, 2, ... The same seed gives the same.

    What does not fit into memory is sorted in `folder` (None: the system's temporary one).
    """
    rng = np.random.default_rng(seed)
    with ExternalSort(ROW, ("time",), folder, rows_in_memory) as sort:
        for user in range(1, shape.users + 1):
            sort.add(_user_rows(shape, user, rng))
        for rows in sort.sorted():
            yield Requests(
                np.ascontiguousarray(rows["time"]),
                np.ascontiguousarray(rows["user"]),
                np.ascontiguousarray(rows["history_length"]),
                offsets_of(rows["new"]),
            )


def requests(shape: Shape, seed: int) -> Iterator[Request]:
    """The same, one by one."""
    for chunk in chunks(shape, seed):
        yield from chunk.each()


def _user_rows(shape: Shape, user: int, rng: np.random.Generator) -> Rows:
    fresh = _new_tokens(shape, rng)
    rows = np.empty(len(fresh), ROW)
    rows["time"] = _times(shape, len(fresh), rng)
    rows["user"] = user
    rows["history_length"] = np.cumsum(fresh)
    rows["new"] = fresh
    return rows


def _new_tokens(shape: Shape, rng: np.random.Generator) -> Ints:
    """New tokens of each of a user's requests, at least one each: geometric, and cut at the last length."""
    last = int(min(shape.longest, max(1.0, shape.last_length.draw(rng))))
    if shape.first_length is None:
        return _grown(last, shape.mean_new, rng)
    first = int(min(last, max(1.0, shape.first_length.draw(rng))))
    grown = _grown(last - first, shape.mean_new, rng) if last > first else np.empty(0, np.int64)
    return np.concatenate((np.array([first], np.int64), grown))


def _grown(total_new: int, mean_new: float, rng: np.random.Generator) -> Ints:
    """`total_new` (at least 1) in geometric portions."""
    draws = int(1.2 * total_new / mean_new) + 50
    fresh: Ints = rng.geometric(1 / mean_new, draws).astype(np.int64)
    while fresh.sum() < total_new:
        fresh = np.concatenate((fresh, rng.geometric(1 / mean_new, draws)))
    total = np.cumsum(fresh)
    count = int(np.searchsorted(total, total_new)) + 1
    fresh = fresh[:count].copy()
    fresh[-1] -= total[count - 1] - total_new
    return fresh


def _times(shape: Shape, count: int, rng: np.random.Generator) -> Floats:
    """Sessions, and absences between them that are scaled to fill the days there are."""
    gaps = shape.segment_s + rng.exponential(shape.pause_s, count)
    leaves = rng.random(count) < 1 / shape.session_requests
    away = np.minimum((1 - rng.random(count)) ** (-1 / shape.away_tail), shape.longest_away_days * DAY_S / 600)
    rest = shape.days * DAY_S - float(gaps[~leaves].sum())
    absences = away[leaves] / max(1.0, float(away[leaves].sum())) * max(rest, shape.segment_s * int(leaves.sum()))
    gaps[leaves] = np.maximum(absences, shape.segment_s)
    # The first absence is spent before the first request, so that not everybody begins at midnight.
    times: Floats = np.cumsum(gaps)
    return times
