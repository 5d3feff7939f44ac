"""A trace's own statistics, and those that MTServe publishes for KuaiRand-1K (table 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from perf.traces.request import Request

HOUR_S = 3600.0


@dataclass(frozen=True)
class Statistics:
    """NaN: not published, or of too few requests."""

    users: int
    requests: int
    shortest: int
    longest: int
    mean_length: float
    mean_new: float
    last_lengths_total: int
    median_return_s: float
    mean_return_s: float
    returns_within_5_minutes: float
    returns_within_an_hour: float
    returns_after_a_day: float

    @property
    def ceiling(self) -> float:
        """The hit ratio of a cache that never loses anything: all but the new tokens."""
        return 1 - self.mean_new / self.mean_length

    def as_dict(self) -> dict[str, float]:
        return asdict(self) | {"ceiling": self.ceiling}


KUAIRAND_1K = {"users": 1_000, "requests": 1_181_699, "shortest": 1, "longest": 20_000, "mean_length": 6_375.0}


def statistics_of(trace: Iterable[Request]) -> Statistics:
    """In one pass over at least one request."""
    last: dict[int, Request] = {}
    lengths: list[int] = []
    returns: list[float] = []
    new = 0
    for request in trace:
        before = last.get(request.user)
        if before is not None:
            returns.append(request.time - before.time)
        last[request.user] = request
        lengths.append(request.history_length)
        new += request.new
    gaps = np.array(returns or [np.nan])
    return Statistics(
        users=len(last),
        requests=len(lengths),
        shortest=min(lengths),
        longest=max(lengths),
        mean_length=float(np.mean(lengths)),
        mean_new=new / len(lengths),
        last_lengths_total=sum(request.history_length for request in last.values()),
        median_return_s=float(np.median(gaps)),
        mean_return_s=float(np.mean(gaps)),
        returns_within_5_minutes=float(np.mean(gaps <= HOUR_S / 12)),
        returns_within_an_hour=float(np.mean(gaps <= HOUR_S)),
        returns_after_a_day=float(np.mean(gaps > 24 * HOUR_S)),
    )
