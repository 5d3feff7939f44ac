"""From a trace's arrivals, which bring what is new, to visits with whole histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from perf.traces import generator
from perf.traces.events import EventMaker
from perf.traces.request import Arrival
from perf.traces.shapes import Shape
from perf.visits import Visit


@dataclass(frozen=True)
class Vocabulary:
    """What a model knows. Other IDs are folded into it: which item it is does not matter to what a request costs."""

    items: int
    actions: int

    def item(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ids % self.items

    def action(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return ids % np.int32(self.actions)


class _Growing:
    """One user's events. Views stay what they were while the arrays grow."""

    def __init__(self) -> None:
        self.items, self.actions = np.empty(64, np.int64), np.empty(64, np.int32)
        self.length = 0

    def append(self, items: npt.NDArray[np.int64], actions: npt.NDArray[np.int32]) -> None:
        stop = self.length + len(items)
        if stop > len(self.items):
            room = max(stop, 3 * len(self.items) // 2)
            self.items = np.concatenate((self.items[: self.length], np.empty(room - self.length, np.int64)))
            self.actions = np.concatenate((self.actions[: self.length], np.empty(room - self.length, np.int32)))
        self.items[self.length : stop], self.actions[self.length : stop] = items, actions
        self.length = stop


class Histories:
    """Everybody's history so far: 12 bytes an event, a third more while it grows. Memory does not grow with requests.

    `candidates`: how many to draw for each visit of a trace that has none; `longest`: no history grows beyond it.
    """

    def __init__(self, known: Vocabulary, candidates: int, seed: int) -> None:
        self._known = known
        self._candidates = candidates
        self._rng = np.random.default_rng([seed, 2])
        self._users: dict[int, _Growing] = {}

    def visit(self, arrival: Arrival) -> Visit:
        """Raises `ValueError` where a trace does not begin at the beginning of its users' histories."""
        own = self._users.setdefault(arrival.user, _Growing())
        if own.length != arrival.known:
            raise ValueError(
                f"a request brings events from position {arrival.known}, and its user's history has {own.length} so "
                "far: a trace is replayed from its first request"
            )
        own.append(self._known.item(arrival.items), self._known.action(arrival.actions))
        shown = self._known.item(arrival.candidates)
        if not len(shown) and self._candidates:
            shown = self._rng.integers(0, self._known.items, self._candidates)
        items, actions = own.items[: own.length], own.actions[: own.length]
        return Visit(arrival.user, items, actions, arrival.new, shown, time=arrival.time)


@dataclass(frozen=True)
class Window:
    """A part of a trace. `before`: each user's last visit before it, in that order, with nothing to score.

    Whoever serves these first has the cache that the window would have found, with the most recent users on the device.
    """

    before: tuple[Visit, ...]
    visits: Iterator[Visit]

    @property
    def tokens(self) -> int:
        """Of all histories at the window's start."""
        return sum(len(visit.items) for visit in self.before)


def window(arrivals: Iterable[Arrival], histories: Histories, first: int = 0, mean_length: int = 0) -> Window:
    """From request `first` on, and not before the users' histories are `mean_length` long on average."""
    last: dict[int, Visit] = {}
    tokens, seen = 0, 0
    visits = (histories.visit(arrival) for arrival in arrivals)
    for visit in visits:
        if seen >= first and (not mean_length or (last and tokens >= mean_length * len(last))):
            return Window(_before(last), _chained(visit, visits))
        tokens += len(visit.items) - (len(last[visit.user].items) if visit.user in last else 0)
        last.pop(visit.user, None)
        last[visit.user] = visit
        seen += 1
    raise ValueError(
        f"the trace ends after {seen:,} requests with histories of {tokens // max(1, len(last)):,} events on average: "
        f"there is no window from request {first:,} with {mean_length:,}"
    )


def generated(shape: Shape, seed: int, candidates: int = 0) -> Iterator[Arrival]:
    """The arrivals of a made-up trace without a file between."""
    maker = EventMaker(shape, seed, candidates)
    for chunk in generator.chunks(shape, seed):
        for block in maker.blocks(chunk):
            yield from block.arrivals()


def poisson(visits: Iterable[Visit], rate: float, seed: int) -> Iterator[Visit]:
    """The same visits in the same order, at `rate` a second on average."""
    rng, now = np.random.default_rng([seed, 3]), 0.0
    for visit in visits:
        now += float(rng.exponential(1 / rate))
        yield replace(visit, time=now)


def sped_up(visits: Iterable[Visit], factor: float) -> Iterator[Visit]:
    """The recorded arrivals, `factor` times as fast, the first of them at 0."""
    start: float | None = None
    for visit in visits:
        start = visit.time if start is None else start
        yield replace(visit, time=(visit.time - start) / factor)


def _before(last: dict[int, Visit]) -> tuple[Visit, ...]:
    return tuple(replace(visit, candidates=visit.candidates[:0]) for visit in last.values())


def _chained(first: Visit, rest: Iterator[Visit]) -> Iterator[Visit]:
    yield first
    yield from rest
