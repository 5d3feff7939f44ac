"""Percentiles, ratios, spreads: one definition for all reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def percentile(values: Sequence[float], q: float) -> float:
    """Linear between neighbours; NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else float("nan")


def ratio(part: float, whole: float) -> float:
    """NaN of nothing."""
    return part / whole if whole else float("nan")


@dataclass(frozen=True)
class Spread:
    """Median, quartiles, mean, and how many there were."""

    median: float
    low: float
    high: float
    mean: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """NaN of nothing."""
        if not len(values):
            return cls(math.nan, math.nan, math.nan, math.nan, 0)
        low, median, high = np.percentile(values, (25, 50, 75))
        return cls(float(median), float(low), float(high), float(np.mean(values)), len(values))


def ratios(whole: Sequence[float], part: Sequence[float]) -> Spread:
    """How many times `part` goes into `whole`: the medians' ratio, and between which values it lies.

    The quartiles are those of each divided by the other's median, whichever of the two are further out.
    """
    above, below = Spread.of(whole), Spread.of(part)
    low = min(above.low / below.median, above.median / below.high) if part else float("nan")
    high = max(above.high / below.median, above.median / below.low) if part else float("nan")
    middle = above.median / below.median
    return Spread(middle, low, high, above.mean / below.mean, min(above.count, below.count))


def mean_ratio(whole: Sequence[float], part: Sequence[float], draws: int = 2000) -> Spread:
    """The ratio of the means, and the quartiles of what it would be of other samples (bootstrap, seeded)."""
    if not len(whole) or not len(part):
        return Spread.of([])
    rng = np.random.default_rng(0)
    above, below = np.asarray(whole), np.asarray(part)
    drawn = [float(rng.choice(above, len(above)).mean() / rng.choice(below, len(below)).mean()) for _ in range(draws)]
    low, high = np.percentile(drawn, (25, 75))
    ratio = float(above.mean() / below.mean())
    return Spread(ratio, float(low), float(high), ratio, min(len(above), len(below)))


def mean_spread(values: Sequence[float], draws: int = 2000) -> Spread:
    """The mean as the middle, and the quartiles of what it would be of other samples (bootstrap, seeded)."""
    if not len(values):
        return Spread.of([])
    rng = np.random.default_rng(0)
    taken = np.asarray(values)
    low, high = np.percentile([float(rng.choice(taken, len(taken)).mean()) for _ in range(draws)], (25, 75))
    return Spread(float(taken.mean()), float(low), float(high), float(taken.mean()), len(taken))
