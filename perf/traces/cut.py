"""Cut a stream of events into requests: what one user does within one interval is one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from perf.traces.block import Block, Requests, offsets_of, without_candidates
from perf.traces.per_user import PerUser
from perf.traces.request import Ints
from perf.traces.sorting import Rows

EVENT = np.dtype([("time_ms", np.int64), ("user", np.int64), ("item", np.int64), ("action", np.int32)])


@dataclass(frozen=True)
class Rules:
    """Intervals are multiples of `interval_ms` since 1970, so that they do not depend on which files are read.

    What lies beyond a user's first `longest_history` events is left out; an interval with more than `largest_request`
    events of one user becomes several requests.
    """

    interval_ms: int = 60_000
    longest_history: int = 20_000
    largest_request: int = 20_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}, should be at least 1")


class Cutter:
    """`beyond_longest`: events that were left out because their user's history was full."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.beyond_longest = 0
        self._seen = PerUser(missing=0.0)

    def blocks(self, pieces: Iterable[Rows], start_unix_s: int) -> Iterator[Block]:
        """Events (`EVENT`, in time order, oldest first) as requests in time order.

        A user's events of one time keep their order. A request's time is that of its last event.
        Memory: a piece, and the events of one interval.
        """
        rest = np.empty(0, EVENT)
        for piece in pieces:
            rows = np.concatenate((rest, piece))
            interval = rows["time_ms"] // self.rules.interval_ms
            # The last interval may go on in the next piece.
            complete = int(np.searchsorted(interval, interval[-1])) if len(rows) else 0
            yield from self._block(rows[:complete], start_unix_s)
            rest = rows[complete:]
        yield from self._block(rest, start_unix_s)

    def _block(self, rows: Rows, start_unix_s: int) -> Iterator[Block]:
        """Whole intervals as one block, or none."""
        rows, offsets = self._grouped(rows)
        rows, offsets, known = self._within_longest(rows, offsets)
        if not len(rows):
            return
        # Requests of one interval, in the order of their times; lexsort leaves a user's own in theirs.
        last = offsets[1:] - 1
        order = np.lexsort((rows["user"][last], rows["time_ms"][last]))
        new = np.diff(offsets)[order]
        moved = offsets_of(new)
        events = rows[np.repeat(offsets[:-1][order] - moved[:-1], new) + np.arange(len(rows))]
        last = moved[1:] - 1
        times = (events["time_ms"][last] - 1000 * start_unix_s) / 1000
        yield without_candidates(
            Requests(times, events["user"][last], known[order] + new, moved),
            np.ascontiguousarray(events["item"]),
            np.ascontiguousarray(events["action"]),
            events["time_ms"] // 1000,
        )

    def _grouped(self, rows: Rows) -> tuple[Rows, Ints]:
        """By interval and user, oldest first; where each request begins, and the end."""
        interval = rows["time_ms"] // self.rules.interval_ms
        order = np.lexsort((rows["user"], interval))
        rows, interval = rows[order], interval[order]
        begins = (np.diff(interval, prepend=-1) != 0) | (np.diff(rows["user"], prepend=-1) != 0)
        starts = np.flatnonzero(begins)
        sizes = np.diff(np.append(starts, len(rows)))
        begins |= (np.arange(len(rows)) - np.repeat(starts, sizes)) % self.rules.largest_request == 0
        return rows, np.append(np.flatnonzero(begins), len(rows)).astype(np.int64)

    def _within_longest(self, rows: Rows, offsets: Ints) -> tuple[Rows, Ints, Ints]:
        """Without events beyond the longest history and requests of no others; what each user had before."""
        new = np.diff(offsets)
        known = self._seen.accumulate(rows["user"][offsets[:-1]], new).astype(np.int64)
        allowed = np.clip(self.rules.longest_history - known, 0, new)
        self.beyond_longest += int((new - allowed).sum())
        within = np.arange(len(rows)) - np.repeat(offsets[:-1], new)
        kept = allowed > 0
        return rows[within < np.repeat(allowed, new)], offsets_of(allowed[kept]), known[kept]
