"""What users ask of a server, in time order: real visits from MovieLens, made-up ones for the big model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perf.movielens import Actions, History, Items


@dataclass(frozen=True)
class Visit:
    """A user comes back: `items` and `actions` are the whole history, of which the last `new` events are new.

    `target`: the item that followed, where the answer is judged by it. `time`: when, in seconds of a replay.
    """

    user: int
    items: Items
    actions: Actions
    new: int
    candidates: Items
    target: int | None = None
    time: float = 0.0


def movielens_visits(histories: Sequence[History], items: int, gap_s: int = 1800, events: int = 32) -> list[Visit]:
    """All visits of all users in time order; a visit ends with a gap of `gap_s`, or after `events` events.

    Every visit ranks all items. The last event of each user is held out: the last visit is judged by it.
    User IDs are 1, 2, ... in the order of `histories`.
    """
    candidates = np.arange(1, items, dtype=np.int64)
    timed: list[tuple[int, Visit]] = []
    for user, history in enumerate(histories, start=1):
        known = len(history) - 1
        start = 0
        for stop in _visit_ends(history, known, gap_s, events):
            target = int(history.items[known]) if stop == known else None
            visit = Visit(user, history.items[:stop], history.actions[:stop], stop - start, candidates, target)
            timed.append((int(history.timestamps[stop - 1]), visit))
            start = stop
    return [visit for _, visit in sorted(timed, key=lambda pair: pair[0])]


def _visit_ends(history: History, known: int, gap_s: int, events: int) -> Iterator[int]:
    start = 0
    for stop in range(1, known + 1):
        pause = stop < known and history.timestamps[stop] - history.timestamps[stop - 1] > gap_s
        if stop == known or stop - start >= events or pause:
            yield stop
            start = stop


class SyntheticUsers:
    """Users who do things at random, each visit following the one before. The same seed gives the same visits."""

    def __init__(self, items: int, actions: int, seed: int) -> None:
        self._items, self._actions = items, actions
        self._random = np.random.default_rng(seed)
        self._histories: dict[int, tuple[Items, Actions]] = {}

    def visit(self, user: int, new: int, candidates: int) -> Visit:
        """`user` comes with `new` events more than the last time."""
        items, actions = self._histories.get(user, (np.empty(0, np.int64), np.empty(0, np.int32)))
        items = np.concatenate([items, self._random.integers(0, self._items, new)])
        actions = np.concatenate([actions, self._random.integers(0, self._actions, new, dtype=np.int32)])
        self._histories[user] = items, actions
        shown = self._random.choice(self._items, candidates, replace=False)
        return Visit(user, items, actions, new, shown)

    def order(self, users: Sequence[int], count: int) -> list[int]:
        """Who comes, `count` times: anybody, at random."""
        return [int(user) for user in self._random.choice(users, count)]
