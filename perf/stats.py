"""Percentiles and ratios: one definition for all reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], q: float) -> float:
    """Linear between neighbours; NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else float("nan")


def ratio(part: float, whole: float) -> float:
    """NaN of nothing."""
    return part / whole if whole else float("nan")
