"""Which visits go together: batches of different users, of whom none has a request under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from perf.visits import Visit

# So many batches are looked through for users who are free. Small: the order of the trace is the workload.
LOOK_AHEAD = 8


class Dealer:
    """Deals visits in their order, except that a user's next one waits until the one before is answered.

    In a trace a user's requests lie a minute apart: however fast it is replayed, two of them are never under way
    together. `take` and `done` are for any thread.
    """

    def __init__(self, visits: Iterable[Visit], clock: Callable[[], float] | None = None) -> None:
        """With a `clock`, whose time is the visits', a visit is not dealt before it is due."""
        self._visits = iter(visits)
        self._clock = clock
        self._waiting: list[Visit] = []
        self._busy: set[int] = set()
        self._ended = False
        self._changed = threading.Condition()

    def take(self, size: int) -> list[Visit]:
        """The next batch: `size` visits, fewer where too few users are left; none: all is dealt, or `end` came."""
        with self._changed:
            while not self._ended:
                missing = size * LOOK_AHEAD - len(self._waiting)
                self._waiting += islice(self._visits, max(0, missing))
                if not self._waiting:
                    return []
                batch, pause = self._chosen(size)
                # With nobody under way and nobody to be awaited a whole batch would never come.
                if len(batch) == size or not (self._busy or pause):
                    self._deal(batch)
                    return batch
                self._changed.wait(pause or None)
            return []

    def done(self, batch: Sequence[Visit]) -> None:
        """Its users may come again."""
        with self._changed:
            self._busy.difference_update(visit.user for visit in batch)
            self._changed.notify_all()

    def end(self) -> None:
        """Deal no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _chosen(self, size: int) -> tuple[list[Visit], float]:
        """Visits that may go now, at most a batch; and the seconds until another will be due, 0 where none is to be."""
        batch: list[Visit] = []
        users = set(self._busy)
        now = self._clock() if self._clock else None
        for visit in self._waiting:
            if now is not None and visit.time > now:
                return batch, max(1e-4, visit.time - now)
            if visit.user not in users:
                batch.append(visit)
                if len(batch) == size:
                    break
            users.add(visit.user)
        return batch, 0.0

    def _deal(self, batch: Sequence[Visit]) -> None:
        dealt = set(map(id, batch))
        self._waiting = [visit for visit in self._waiting if id(visit) not in dealt]
        self._busy.update(visit.user for visit in batch)
