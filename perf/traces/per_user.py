"""A number for every user seen so far, looked up and changed for whole columns of requests at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perf.traces.request import Floats, Ints

Rows = npt.NDArray[np.intp]


class PerUser:
    """Floats, `missing` before a user is first seen. Memory grows with the number of users, not of requests.

    Floats hold whole numbers exactly up to 2^53, more than any count here.
    """

    def __init__(self, missing: float) -> None:
        self._missing = missing
        self._row: dict[int, int] = {}
        self._values: Floats = np.full(1024, missing)

    def __len__(self) -> int:
        return len(self._row)

    @property
    def values(self) -> Floats:
        """One per user, in the order in which users were first seen."""
        return self._values[: len(self._row)]

    def exchange(self, users: Ints, values: Floats | Ints) -> Floats:
        """Set each user's value, in order; what it was before each."""
        if not len(users):
            return np.empty(0)
        order = np.argsort(users, kind="stable")
        first, rows = self._groups(users[order])
        ordered = values[order].astype(np.float64)
        before = np.empty(len(users))
        before[order[1:]] = ordered[:-1]
        before[order[first]] = self._values[rows]
        last = np.append(first[1:], len(users)) - 1
        self._values[rows] = ordered[last]
        return before

    def accumulate(self, users: Ints, amounts: Ints) -> Floats:
        """Add to each user's value, in order; what it was before each."""
        if not len(users):
            return np.empty(0)
        order = np.argsort(users, kind="stable")
        first, rows = self._groups(users[order])
        total = np.cumsum(amounts[order], dtype=np.float64)
        earlier = np.concatenate(([0.0], total[:-1]))
        sizes = np.diff(np.append(first, len(users)))
        before = np.empty(len(users))
        before[order] = earlier + np.repeat(self._values[rows] - earlier[first], sizes)
        last = np.append(first[1:], len(users)) - 1
        self._values[rows] += total[last] - earlier[first]
        return before

    def _groups(self, ordered: Ints) -> tuple[Rows, Rows]:
        """Where each user's group starts among sorted users, and that user's row."""
        first = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
        rows = np.array([self._row.setdefault(user, len(self._row)) for user in ordered[first].tolist()], np.intp)
        if len(self._row) > len(self._values):
            longer = np.full(2 * len(self._row), self._missing)
            longer[: len(self._values)] = self._values
            self._values = longer
        return first, rows
