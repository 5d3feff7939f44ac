"""What generated traces look like: two shapes whose statistics are those that MTServe publishes (table 4).

Published are the numbers of users and requests, the shortest, longest and mean history of a request, that requests are
segments of a minute, and that most users return soon while some stay away for long. What is not published is chosen
here and can be changed: a user's requests come in short sessions with a minute or so between them, what lies between
two sessions is Pareto-distributed, and items are drawn from a Zipf-like popularity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perf.traces.published import KUAIRAND_1K, MT, Published


@dataclass(frozen=True)
class Lognormal:
    """`spread` is that of the logarithm."""

    median: float
    spread: float

    def draw(self, rng: np.random.Generator) -> float:
        return self.median * float(np.exp(self.spread * rng.normal()))


@dataclass(frozen=True)
class Between:
    """A beta distribution, stretched: `low` > 1 pushes away from `least`, `high` > 1 from `most`."""

    least: float
    most: float
    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        return self.least + (self.most - self.least) * float(rng.beta(self.low, self.high))


@dataclass(frozen=True)
class Shape:
    """The defaults are KuaiRand-1K's.

    `first_length`: the history that a user's first request brings; None: histories grow from nothing.
    `last_length`: the history after the last one, at most `longest`. The number of requests follows from these and
    `mean_new`. `session_requests` is set so that an LRU cache of the paper's size finds on the device about what the
    paper's found on KuaiRand-1K (64 % of the tokens). Item IDs are 1 .. `items`, the most popular first; the chance of
    the k-th goes with k to the power of -`popularity`.
    """

    users: int = 1000
    days: float = 30.0
    mean_new: float = 9.9
    longest: int = 20_000
    first_length: Lognormal | Between | None = None
    last_length: Lognormal | Between = Lognormal(11_150.0, 0.31)
    session_requests: float = 2.4
    segment_s: float = 60.0
    pause_s: float = 30.0
    away_tail: float = 1.2
    longest_away_days: float = 7.0
    items: int = 4_000_000
    popularity: float = 0.9

    def scaled(self, share: float) -> Shape:
        """With so many of the users, each as before."""
        return replace(self, users=max(1, round(self.users * share)))


MT_SHAPE = Shape(
    users=2_884,
    mean_new=1.769,
    longest=6_000,
    first_length=Between(4_000, 6_000, 1.0, 2.0),
    last_length=Between(4_000, 6_005, 7.0, 0.5),
    items=1_000_000,
)

SHAPES: dict[str, tuple[Shape, Published]] = {"kuairand-1k": (Shape(), KUAIRAND_1K), "mt": (MT_SHAPE, MT)}
