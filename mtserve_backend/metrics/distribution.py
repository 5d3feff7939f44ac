"""How durations are distributed: a histogram as Prometheus counts it, in buckets that hold all that came before.

Counted here and told as totals: a histogram of the server's would have to be told each duration by itself, in a call to
another process for each.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

# Upper bounds in seconds.
MILLISECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MICROSECONDS = (0.0001, 0.0002, 0.0005, *MILLISECONDS)
INFINITE = "+Inf"


@dataclass(frozen=True)
class DistributionState:
    """`buckets`: durations of at most so many seconds, by that bound as text; the last one holds all."""

    buckets: dict[str, int]
    seconds: float

    @property
    def count(self) -> int:
        return self.buckets[INFINITE]


class Distribution:
    """`add` is for one thread; `state` for any, which may miss the duration being added."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    def state(self) -> DistributionState:
        names = (*map(repr, self._bounds), INFINITE)
        return DistributionState(dict(zip(names, accumulate(list(self._counts)), strict=True)), self._seconds)
