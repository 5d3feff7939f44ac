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
from mtserve_client.protocol import Call, Ranking
from mtserve_client.users import UserId

# How often a server may ask for earlier tokens in one call. Once is normal (it forgot the user), twice a
# coincidence.
RESENDS = 2


@dataclass(frozen=True)
class Retry:
    """What is sent again, and when: always within the call's `timeout_s`.

    Attributes:
        attempts: sendings in all while the server is unavailable; 1: never again.
        faults: how often to send again after a ServerFault (INTERNAL).
        first_s, longest_s: the pause before the first sending again, doubled each time up to the longest.
            Each pause is drawn between half of that and the whole, so that clients of a server that went away
            do not return together.
    """

    attempts: int = 5
    faults: int = 1
    first_s: float = 0.05
    longest_s: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.faults < 0 or not 0 <= self.first_s <= self.longest_s:
            raise InvalidRequest(f"Retry needs attempts >= 1, faults >= 0, 0 <= first_s <= longest_s, got {self}")

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
    """Send this call; give up after `timeout_s`."""

    call: Call
    timeout_s: float


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


Exchange = Generator[Send | Pause, Ranking | None, Ranking]


def converse(
    memory: Memory,
    query: Query,
    timeout_s: float,
    retry: Retry,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> Exchange:
    """One call: the delta the memory allows; more where the server asks; again while it is unavailable.

    What is remembered of the user changes only when this returns.
    """
    deadline = clock() + timeout_s
    ticket = memory.open(query.user, query.history, query.new_events)
    try:
        ranking = yield from _answered(ticket, query, deadline, timeout_s, retry, clock, draw)
    except BaseException:  # also GeneratorExit: interrupted, cancelled
        memory.fail(ticket)
        raise
    memory.succeed(ticket, ranking.cache)
    return ranking


def erase(
    memory: Memory,
    user: UserId,
    timeout_s: float,
    retry: Retry,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> Exchange:
    """Have the server forget a user, and forget what is remembered of it here."""
    deadline = clock() + timeout_s
    call = Call(user, Events.empty(), 0, np.empty(0, dtype=np.int64), None, forget=True)
    memory.forget(user)
    failures = 0
    while True:
        remaining = deadline - clock()
        if remaining <= 0:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s")
        try:
            ranking = yield Send(call, remaining)
        except (ServerUnavailable, ServerFault) as error:
            failures += 1
            pause = retry.pause_s(failures, draw())
            allowed = retry.attempts - 1 if isinstance(error, ServerUnavailable) else retry.faults
            if failures > allowed or clock() + pause >= deadline:
                raise
            yield Pause(pause)
            continue
        if ranking is None:
            raise TypeError("a Send is answered with a Ranking")
        return ranking


def _answered(
    ticket: Ticket,
    query: Query,
    deadline: float,
    timeout_s: float,
    retry: Retry,
    clock: Callable[[], float],
    draw: Callable[[], float],
) -> Exchange:
    start, resends, unavailable, faults = ticket.start, 0, 0, 0
    while True:
        if ticket.broken:
            start = 0
        remaining = deadline - clock()
        if remaining <= 0:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s")
        call = Call(query.user, ticket.events(start), start, query.candidates, query.top_k)
        ticket.sending()
        try:
            ranking = yield Send(call, remaining)
        except MtserveError as error:
            ticket.heard(final=is_final(error))
            if isinstance(error, HistoryNeeded):
                resends += 1
                if resends > RESENDS or error.position >= start:
                    raise ServerFault(f"sent from position {start}, the server answers: {error}") from error
                ticket.known = error.position
                start = ticket.start
                continue
            if isinstance(error, ServerUnavailable):
                unavailable += 1
                again = unavailable < retry.attempts
            else:
                faults += 1
                again = isinstance(error, ServerFault) and faults <= retry.faults
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from error
            pause = retry.pause_s(unavailable + faults, draw())
            if not again or clock() + pause >= deadline:
                raise
            yield Pause(pause)
            continue
        ticket.heard(final=True)
        if ranking is None:
            raise TypeError("a Send is answered with a Ranking")
        if ticket.doubtful(start, ranking.cache):
            start = 0
            continue
        return ranking
