"""A call from beginning to end, as a generator that yields what to do and is told how it went.

No clock but the one given, no network, no threads: the blocking client, the asyncio client and the tests
drive the same code.

    step = next(exchange)
    step is a Send:  exchange.send(ranking), or exchange.throw(error) where there was none
    step is a Pause: wait, then exchange.send(None)
    StopIteration:   its value is the call's Ranking; any other exception is the call's error
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtserve_client.errors import (
    DeadlineExceeded,
    HistoryNeeded,
    InvalidRequest,
    MtserveError,
    ServerFault,
    ServerUnavailable,
    is_final,
)
from mtserve_client.events import Events
from mtserve_client.memory import Memory, Ticket
from mtserve_client.places import Places
from mtserve_client.protocol import Call, Ranking
from mtserve_client.users import UserId

# How often a server may ask for earlier tokens in one call. Once is normal: it forgot the user, or knows another
# history. Twice, if it knew less, and then sees that the rest is another history's.
RESENDS = 2


@dataclass(frozen=True)
class Retry:
    """What is sent again, and when: always within the call's `timeout_s`.

    Attributes:
        attempts: sendings in all while the server is unavailable; 1: never again. With several places, how often
            all of them are tried.
        faults: how often to send again after a ServerFault (INTERNAL).
        first_s, longest_s: the pause before the first sending again, doubled each time up to the longest.
            Each pause is drawn between half of that and the whole, so that clients of a server that went away
            do not return together.
        place_s: how long one place may take to answer before the next is asked, where there is one; None: as long as
            the call has. Without it a machine that is gone without a word (no connection refused) costs its users
            whole calls, until three of them have shown that it is down.
    """

    attempts: int = 5
    faults: int = 1
    first_s: float = 0.05
    longest_s: float = 2.0
    place_s: float | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.faults < 0 or not 0 <= self.first_s <= self.longest_s:
            raise InvalidRequest(f"Retry needs attempts >= 1, faults >= 0, 0 <= first_s <= longest_s, got {self}")
        if self.place_s is not None and not 0 < self.place_s < float("inf"):
            raise InvalidRequest(f"Retry needs a positive place_s, or None, got {self}")

    def pause_s(self, failures: int, draw: float) -> float:
        """Seconds to wait after the `failures`-th failure; `draw` is in 0..1."""
        return min(self.longest_s, self.first_s * 2.0 ** (failures - 1)) * (0.5 + 0.5 * draw)


@dataclass(frozen=True)
class Query:
    """What the caller asks; checked. Exactly one of `history` and `new_events` is given."""

    user: UserId
    history: Events | None
    new_events: Events | None
    candidates: NDArray[np.int64]
    top_k: int | None


@dataclass(frozen=True)
class Send:
    """Send this call to `place`; give up after `timeout_s`."""

    call: Call
    timeout_s: float
    place: int


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


Exchange = Generator[Send | Pause, Ranking | None, Ranking]


def converse(
    memory: Memory,
    places: Places,
    query: Query,
    timeout_s: float,
    retry: Retry,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> Exchange:
    """One call: the delta the memory allows; more where the server asks; to the next place, and again, while there is
    no answer.

    What is remembered of the user changes only when this returns.
    """
    effort = _Effort(places, places.order(query.user), timeout_s, retry, clock, draw)
    ticket = memory.open(query.user, query.history, query.new_events)
    try:
        ranking = yield from _answered(ticket, query, effort)
    except BaseException:  # also GeneratorExit: interrupted, cancelled
        memory.fail(ticket)
        raise
    memory.succeed(ticket)
    return ranking


def erase(
    memory: Memory,
    places: Places,
    user: UserId,
    timeout_s: float,
    retry: Retry,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> Exchange:
    """Have every place forget a user, and forget what is remembered of it here.

    Every place is asked, whatever the others answer, and has an equal share of the time; the first failure that stays
    is raised in the end.
    """
    call = Call(user, Events.empty(), 0, np.empty(0, dtype=np.int64), None, forget=True)
    memory.forget(user)
    failure: MtserveError | None = None
    answer: Ranking | None = None
    order = places.order(user)
    for place in order:
        effort = _Effort(places, [place], timeout_s / len(order), retry, clock, draw)
        while True:
            try:
                answer = yield Send(call, effort.time_to_send(), effort.place)
            except MtserveError as error:
                try:
                    pause = effort.failed(error)
                except MtserveError as last:
                    failure = failure or last
                    break
                if pause is not None:
                    yield pause
            else:
                effort.answered()
                break
    if failure is not None:
        raise failure
    if answer is None:
        raise TypeError("a Send is answered with a Ranking")
    return answer


class _Effort:
    """What one call may still try: places, time, failures."""

    def __init__(
        self,
        places: Places,
        order: list[int],
        timeout_s: float,
        retry: Retry,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        self._places = places
        self._order = order
        self._timeout_s = timeout_s
        self._retry = retry
        self._clock = clock
        self._draw = draw
        self._deadline = clock() + timeout_s
        self._tried: set[int] = set()
        self._rounds = 0
        self._faults = 0
        self.place = order[0]
        self._go_on()

    def time_to_send(self) -> float:
        """Seconds for the next sending. Raises DeadlineExceeded where none is left."""
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise self._too_late()
        if self._retry.place_s is not None and len(self._tried) < len(self._order):
            return min(remaining, self._retry.place_s)
        return remaining

    def failed(self, error: MtserveError) -> Pause | None:
        """The place gave no answer; from now on `place` is the next one, after the pause if there is one.

        Raises:
            MtserveError: `error` itself, or DeadlineExceeded, where the call has failed.
        """
        if not isinstance(error, (ServerUnavailable, ServerFault, DeadlineExceeded)):
            raise error
        self._places.failed(self.place)
        if isinstance(error, ServerFault):
            self._faults += 1
            if self._faults > self._retry.faults:
                raise error
        if self._clock() >= self._deadline:
            raise self._too_late() if isinstance(error, DeadlineExceeded) else error
        if self._go_on():
            return None
        if isinstance(error, DeadlineExceeded):
            raise self._too_late() from error
        self._rounds += 1
        pause = self._retry.pause_s(self._rounds, self._draw())
        enough = isinstance(error, ServerUnavailable) and self._rounds >= self._retry.attempts
        if enough or self._clock() + pause >= self._deadline:
            raise error
        self._tried.clear()
        self._go_on()
        return Pause(pause)

    def answered(self) -> None:
        """The place did answer, be it with a refusal."""
        self._places.answered(self.place)

    def _go_on(self) -> bool:
        """To the first place that is left to try; False where there is none."""
        place = self._places.choose(self._order, self._tried)
        if place is None:
            return False
        self._tried.add(place)
        self.place = place
        return True

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no answer within {self._timeout_s:g} s")


def _answered(ticket: Ticket, query: Query, effort: _Effort) -> Exchange:
    resends = 0
    ticket.ask(effort.place)
    while True:
        timeout_s = effort.time_to_send()
        events, prefix_digest = ticket.events()
        call = Call(query.user, events, ticket.start, query.candidates, query.top_k, prefix_digest)
        try:
            ranking = yield Send(call, timeout_s, ticket.place)
        except MtserveError as error:
            if is_final(error):
                effort.answered()
            if isinstance(error, HistoryNeeded):
                resends += 1
                if resends > RESENDS or error.position >= ticket.start:
                    raise ServerFault(f"sent from position {ticket.start}, the server answers: {error}") from error
                ticket.start = error.position
                continue
            pause = effort.failed(error)
            if pause is not None:
                yield pause
            if effort.place != ticket.place:
                resends = 0
                ticket.ask(effort.place)
            continue
        effort.answered()
        if ranking is None:
            raise TypeError("a Send is answered with a Ranking")
        return ranking
