"""Made-up events and candidates for generated requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perf.traces import feedback
from perf.traces.block import Block, Requests
from perf.traces.generator import DAY_S
from perf.traces.metadata import TraceError
from perf.traces.request import Floats, Ints
from perf.traces.shapes import Shape

# 8 April 2022, 00:00 UTC: the first day of KuaiRand's logs. Time 0 of a generated trace.
START_UNIX_S = 1_649_376_000


class EventMaker:
    """Events for requests, which must be given in the trace's order. The same seed gives the same.

    A request's events are spread evenly over the segment before it; those of a history that was there before the trace
    began, over as many days as the trace has.
    """

    def __init__(self, shape: Shape, seed: int, candidates: int = 0) -> None:
        """`candidates` different items in each request. Raises `TraceError` where there are not twice as many items."""
        if 2 * candidates > shape.items:
            raise TraceError(
                f"{candidates} different candidates need at least {2 * candidates} items, not {shape.items}"
            )
        self._shape = shape
        self._candidates = candidates
        # Not the arrivals' seed alone: events must not change who comes when.
        self._rng = np.random.default_rng([seed, 1])

    def blocks(self, requests: Requests) -> Iterator[Block]:
        """The requests with events, in parts of a block's size."""
        for start, stop in requests.pieces():
            part = requests.slice(start, stop)
            shown = np.arange(len(part) + 1, dtype=np.int64) * self._candidates
            yield Block(
                part,
                self._items(part.events),
                feedback.draw(part.events, self._rng),
                self._timestamps(part),
                shown,
                self._shown(len(part)).ravel(),
            )

    def _items(self, count: int) -> Ints:
        return popular(self._rng.random(count), self._shape.items, self._shape.popularity)

    def _timestamps(self, requests: Requests) -> Ints:
        new = requests.new
        before = (requests.history_length == new) & (self._shape.first_length is not None)
        span = np.where(before, self._shape.days * DAY_S, self._shape.segment_s)
        from_last = np.repeat(requests.offsets[1:], new) - 1 - np.arange(requests.events)
        seconds = np.repeat(requests.time, new) - np.repeat(span / np.maximum(new, 1), new) * from_last
        stamps: Ints = np.floor(seconds).astype(np.int64) + START_UNIX_S
        return stamps

    def _shown(self, count: int) -> Ints:
        """Popular items more often; what would be there twice is drawn again, from all items alike."""
        shape = (count, self._candidates)
        shown = self._items(count * self._candidates).reshape(shape)
        while self._candidates:
            shown.sort(axis=1)
            twice = np.zeros(shape, np.bool_)
            twice[:, 1:] = shown[:, 1:] == shown[:, :-1]
            if not twice.any():
                break
            shown[twice] = self._rng.integers(1, self._shape.items + 1, int(twice.sum()))
        mixed: Ints = self._rng.permuted(shown, axis=1)
        return mixed


def popular(uniform: Floats, items: int, exponent: float) -> Ints:
    """Ranks 1 .. `items` from numbers in [0, 1): a bounded Pareto distribution, rounded down.

    Close to Zipf's law with this exponent, in constant memory and time whatever the number of items.
    """
    if abs(exponent - 1) < 1e-9:
        ranks = np.exp(uniform * np.log(items + 1))
    else:
        power = 1 - exponent
        ranks = (1 + uniform * ((items + 1) ** power - 1)) ** (1 / power)
    found: Ints = np.minimum(ranks.astype(np.int64), items)
    return found
