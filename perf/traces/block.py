"""Consecutive requests as columns: `Requests` (who, when, how much) and `Block` (these, and what they bring).

Both are what travels between generator, readers, writer and file; at most a few megabytes each, so that a trace of any
length passes in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perf.traces.request import Actions, Arrival, Floats, Ints, Request

# A block ends with whichever comes first; 262,144 events are 5 MiB.
BLOCK_REQUESTS = 8_192
BLOCK_EVENTS = 262_144


@dataclass(frozen=True)
class Requests:
    """`n` requests in time order. The new events of request `i` are those from `offsets[i]` to `offsets[i + 1]`."""

    time: Floats
    user: Ints
    history_length: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.time)

    @property
    def new(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def events(self) -> int:
        return int(self.offsets[-1])

    def each(self) -> Iterator[Request]:
        columns = (self.user, self.time, self.history_length, self.new)
        return map(Request, *(column.tolist() for column in columns))

    def slice(self, start: int, stop: int) -> Requests:
        offsets = self.offsets[start : stop + 1]
        return Requests(
            self.time[start:stop], self.user[start:stop], self.history_length[start:stop], offsets - offsets[0]
        )

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of parts that are no larger than a block may be; a request is never cut."""
        start = 0
        while start < len(self):
            full = int(np.searchsorted(self.offsets, self.offsets[start] + BLOCK_EVENTS, side="right")) - 1
            stop = min(max(full, start + 1), start + BLOCK_REQUESTS, len(self))
            yield start, stop
            start = stop

    def problem(self) -> str | None:
        """What breaks the format's rules, with the first request's number in this block; None where nothing does."""
        count = len(self.time)
        if len(self.user) != count or len(self.history_length) != count or len(self.offsets) != count + 1:
            lengths = f"{count}, {len(self.user)}, {len(self.history_length)}, {len(self.offsets)}"
            return f"time, user, history_length and offsets have {lengths} values: should be n, n, n, n + 1"
        return (
            _offsets_problem("offsets", self.offsets)
            or _first(self.user < 1, "user should be 1 or more (Triton takes sequence ID 0 for none)")
            or _first(~np.isfinite(self.time), "time is no finite number")
            or _first(np.diff(self.time, prepend=self.time[:1]) < 0, "time lies before that of the request before it")
            or _first(self.history_length < self.new, "history_length is smaller than the number of new events")
        )


@dataclass(frozen=True)
class Block:
    """Requests with their events, and with candidates where there are any (`candidate_offsets` as `offsets`)."""

    requests: Requests
    items: Ints
    actions: Actions
    timestamps: Ints
    candidate_offsets: Ints
    candidates: Ints

    def __len__(self) -> int:
        return len(self.requests)

    def arrivals(self) -> Iterator[Arrival]:
        """The requests one by one, as views of this block's arrays."""
        head = self.requests
        bounds, shown = head.offsets.tolist(), self.candidate_offsets.tolist()
        columns = zip(head.user.tolist(), head.time.tolist(), head.history_length.tolist(), strict=True)
        for index, (user, time, length) in enumerate(columns):
            own = slice(bounds[index], bounds[index + 1])
            candidates = self.candidates[shown[index] : shown[index + 1]]
            yield Arrival(user, time, length, self.items[own], self.actions[own], self.timestamps[own], candidates)

    def slice(self, start: int, stop: int) -> Block:
        first, last = self.requests.offsets[start], self.requests.offsets[stop]
        shown = self.candidate_offsets[start : stop + 1]
        return Block(
            self.requests.slice(start, stop),
            self.items[first:last],
            self.actions[first:last],
            self.timestamps[first:last],
            shown - shown[0],
            self.candidates[shown[0] : shown[-1]],
        )

    def problem(self) -> str | None:
        """As `Requests.problem`, for the whole block."""
        found = self.requests.problem()
        if found:
            return found
        events = self.requests.events
        lengths = {"items": len(self.items), "actions": len(self.actions), "timestamps": len(self.timestamps)}
        for name, length in lengths.items():
            if length != events:
                return f"{name} has {length} values, but offsets end at {events}"
        if len(self.candidate_offsets) != len(self) + 1:
            return f"candidate_offsets has {len(self.candidate_offsets)} values, should be {len(self) + 1}"
        if self.candidate_offsets[-1] != len(self.candidates):
            return f"candidates has {len(self.candidates)} values, but its offsets end at {self.candidate_offsets[-1]}"
        return _offsets_problem("candidate_offsets", self.candidate_offsets)


def without_candidates(requests: Requests, items: Ints, actions: Actions, timestamps: Ints) -> Block:
    return Block(requests, items, actions, timestamps, np.zeros(len(requests) + 1, np.int64), np.empty(0, np.int64))


def joined(blocks: Sequence[Block]) -> Block:
    """At least one block, one after the other."""
    heads = [block.requests for block in blocks]
    return Block(
        Requests(
            np.concatenate([head.time for head in heads]),
            np.concatenate([head.user for head in heads]),
            np.concatenate([head.history_length for head in heads]),
            _joined_offsets([head.offsets for head in heads]),
        ),
        np.concatenate([block.items for block in blocks]),
        np.concatenate([block.actions for block in blocks]),
        np.concatenate([block.timestamps for block in blocks]),
        _joined_offsets([block.candidate_offsets for block in blocks]),
        np.concatenate([block.candidates for block in blocks]),
    )


def offsets_of(counts: Ints) -> Ints:
    """Where each of the counted groups begins, and where the last one ends."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _joined_offsets(parts: Sequence[Ints]) -> Ints:
    return offsets_of(np.concatenate([np.diff(part) for part in parts]))


def _offsets_problem(name: str, offsets: Ints) -> str | None:
    if offsets[0] != 0:
        return f"{name} begin at {offsets[0]}, should begin at 0"
    return _first(np.diff(offsets) < 0, f"{name} go down")


def _first(wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], text: str) -> str | None:
    return f"request {int(np.argmax(wrong))}: {text}" if wrong.any() else None
