"""A made-up trace with the published statistics of KuaiRand-1K (MTServe, section 4.3, figure 4 and table 4).

Published are the numbers of users and requests, the shortest, longest and mean history of a request, that requests are
segments of a minute, and that most users return soon while some stay away for long. What is not published is chosen
here and can be changed: a user's requests come in short sessions with a minute or so between them, and what lies
between two sessions is Pareto-distributed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perf.traces.request import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DAY_S = 86_400.0


@dataclass(frozen=True)
class Shape:
    """What the trace looks like. The defaults are calibrated on what the paper publishes (see `published.py`).

    A user's last history is lognormal, at most `longest`; the same numbers of requests and of users follow from
    `mean_new`. `session_requests` is set so that an LRU cache of the paper's size finds on the device about what the
    paper's found (64 % of the tokens).
    """

    users: int = 1000
    days: float = 30.0
    mean_new: float = 9.9
    longest: int = 20_000
    median_last_length: float = 11_150.0
    spread_last_length: float = 0.31
    session_requests: float = 2.4
    segment_s: float = 60.0
    pause_s: float = 30.0
    away_tail: float = 1.2
    longest_away_days: float = 7.0

    def scaled(self, share: float) -> Shape:
        """With so many of the users, each as before."""
        return Shape(**{**self.__dict__, "users": max(1, round(self.users * share))})


def requests(shape: Shape, seed: int) -> Iterator[Request]:
    """All requests in the order of time; each user's histories grow from nothing. The same seed gives the same."""
    rng = np.random.default_rng(seed)
    users, times, lengths, new = [], [], [], []
    for user in range(shape.users):
        fresh = _new_tokens(shape, rng)
        users.append(np.full(len(fresh), user))
        times.append(_times(shape, len(fresh), rng))
        lengths.append(np.cumsum(fresh))
        new.append(fresh)
    when = np.concatenate(times)
    order = np.argsort(when, kind="stable")
    columns = (np.concatenate(users), when, np.concatenate(lengths), np.concatenate(new))
    for start in range(0, len(order), 65_536):
        part = order[start : start + 65_536]
        yield from map(Request, *(column[part].tolist() for column in columns))


def _new_tokens(shape: Shape, rng: np.random.Generator) -> Ints:
    """New tokens of each of a user's requests, at least one each: geometric, and cut at the last length."""
    last = int(min(shape.longest, max(1.0, shape.median_last_length * np.exp(shape.spread_last_length * rng.normal()))))
    draws = int(1.2 * last / shape.mean_new) + 50
    fresh: Ints = rng.geometric(1 / shape.mean_new, draws).astype(np.int64)
    while fresh.sum() < last:
        fresh = np.concatenate((fresh, rng.geometric(1 / shape.mean_new, draws)))
    total = np.cumsum(fresh)
    count = int(np.searchsorted(total, last)) + 1
    fresh = fresh[:count].copy()
    fresh[-1] -= total[count - 1] - last
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
