"""MovieLens ratings as events for `cut.py`.

Users are 1, 2, ... in the order of their own IDs; items and actions are those of `perf.movielens`: dense item numbers
from 1, stars (1 .. 5).
"""

from __future__ import annotations

import numpy as np

from perf.movielens import MovieLens
from perf.traces.cut import EVENT
from perf.traces.sorting import Rows


def events(data: MovieLens) -> Rows:
    """All ratings in time order; a user's equal times keep the file's order."""
    rows = np.empty(data.interactions, EVENT)
    start = 0
    for user, history in enumerate(data.histories, start=1):
        own = rows[start : start + len(history)]
        own["time_ms"] = history.timestamps * 1000
        own["user"], own["item"], own["action"] = user, history.items, history.actions
        start += len(history)
    return rows[np.argsort(rows["time_ms"], kind="stable")]
