"""A trace's own statistics, gathered in one pass; memory grows with the number of users only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from perf.stats import ratio
from perf.traces.block import Requests
from perf.traces.per_user import PerUser
from perf.traces.request import Floats

HOUR_S = 3600.0
# Returns are counted in bins of 0.5 %, from a millisecond to a few hundred years.
BIN = math.log(1.005)
LEAST_RETURN_S = 1e-3
BINS = int(math.log(1e13) / BIN)


class HistoryBreak(ValueError):
    """A request does not follow on its user's last one."""


@dataclass(frozen=True)
class Statistics:
    """NaN: of too few requests. Medians and percentiles are right to 0.5 %, the rest is exact."""

    users: int
    requests: int
    shortest: int
    longest: int
    mean_length: float
    mean_new: float
    last_lengths_total: int
    median_return_s: float
    p99_return_s: float
    mean_return_s: float
    returns_within_5_minutes: float
    returns_within_an_hour: float
    returns_after_a_day: float

    @property
    def ceiling(self) -> float:
        """The hit ratio of a cache that never loses anything: all but the new tokens."""
        return 1 - ratio(self.mean_new, self.mean_length)

    def as_dict(self) -> dict[str, float]:
        return asdict(self) | {"ceiling": self.ceiling}


class Returns:
    """How long users stay away between two requests (seconds): a histogram with logarithmic bins."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.total_s = 0.0
        self.least_s, self.most_s = math.inf, -math.inf
        self._within = {HOUR_S / 12: 0, HOUR_S: 0, 24 * HOUR_S: 0}

    def add(self, gaps: Floats) -> None:
        if not len(gaps):
            return
        bins = np.log(np.maximum(gaps, LEAST_RETURN_S) / LEAST_RETURN_S) / BIN
        self.counts += np.bincount(np.minimum(bins.astype(np.int64), BINS - 1), minlength=BINS)
        self.total_s += float(gaps.sum())
        self.least_s, self.most_s = min(self.least_s, float(gaps.min())), max(self.most_s, float(gaps.max()))
        for limit in self._within:
            self._within[limit] += int((gaps <= limit).sum())

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count if self.count else math.nan

    def edges_s(self) -> Floats:
        """The bins' lower ends."""
        return np.asarray(LEAST_RETURN_S * np.exp(BIN * np.arange(BINS)), np.float64)

    def quantile_s(self, q: float) -> float:
        """NaN of nothing."""
        if not self.count:
            return math.nan
        index = int(np.searchsorted(np.cumsum(self.counts), q * self.count))
        middle = LEAST_RETURN_S * math.exp(BIN * (index + 0.5))
        return min(max(middle, self.least_s), self.most_s)

    def share_within(self, limit_s: float) -> float:
        """For 5 minutes, an hour and a day: the share of returns after at most so long; NaN of nothing."""
        return self._within[limit_s] / self.count if self.count else math.nan


class StatisticsBuilder:
    """Takes requests in the order of the trace, and checks that every history goes on where it ended."""

    def __init__(self) -> None:
        self.returns = Returns()
        self._lengths = PerUser(missing=0.0)
        self._times = PerUser(missing=math.nan)
        self._requests = self._tokens = self._new = 0
        self._shortest, self._longest = 1 << 62, 0

    def add(self, requests: Requests) -> None:
        """Raises `HistoryBreak`."""
        if not len(requests):
            return
        lengths, new = requests.history_length, requests.new
        before = self._lengths.exchange(requests.user, lengths)
        wrong = np.flatnonzero(before != lengths - new)
        if len(wrong):
            at = wrong[0]
            raise HistoryBreak(
                f"request {at}: user {requests.user[at]} comes with {lengths[at] - new[at]} known and {new[at]} new "
                f"events, but had {before[at]:.0f} after the last request"
            )
        gaps = requests.time - self._times.exchange(requests.user, requests.time)
        self.returns.add(gaps[~np.isnan(gaps)])
        self._requests += len(requests)
        self._tokens += int(lengths.sum())
        self._new += int(new.sum())
        self._shortest = min(self._shortest, int(lengths.min()))
        self._longest = max(self._longest, int(lengths.max()))

    def statistics(self) -> Statistics:
        """Of at least one request; raises ValueError before that."""
        if not self._requests:
            raise ValueError("there are no statistics of no requests")
        returns = self.returns
        return Statistics(
            users=len(self._lengths),
            requests=self._requests,
            shortest=self._shortest,
            longest=self._longest,
            mean_length=self._tokens / self._requests,
            mean_new=self._new / self._requests,
            last_lengths_total=int(self._lengths.values.sum()),
            median_return_s=returns.quantile_s(0.5),
            p99_return_s=returns.quantile_s(0.99),
            mean_return_s=returns.mean_s,
            returns_within_5_minutes=returns.share_within(HOUR_S / 12),
            returns_within_an_hour=returns.share_within(HOUR_S),
            returns_after_a_day=1 - returns.share_within(24 * HOUR_S),
        )


def statistics_of(chunks: Iterable[Requests]) -> Statistics:
    """In one pass over at least one request. Raises `HistoryBreak`."""
    builder = StatisticsBuilder()
    for chunk in chunks:
        builder.add(chunk)
    return builder.statistics()
