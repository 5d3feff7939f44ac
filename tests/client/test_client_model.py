"""The client's exchange and memory against a model of the protocol, in any order of events.

The model is the server's side of docs/protocol.md in ten lines, and a network that may execute a request,
lose it, lose its answer, or execute it long after the client gave it up. Several calls are under way at once, and other
clients state other histories of the same user. What is checked: an answer that a call returns rests on exactly the
history that the call states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mtserve_client.digest import digest
from mtserve_client.errors import (
    DeadlineExceeded,
    HistoryNeeded,
    InvalidRequest,
    MtserveError,
    ServerFault,
    ServerUnavailable,
)
from mtserve_client.events import Events
from mtserve_client.exchange import Exchange, Pause, Query, Retry, Send, converse
from mtserve_client.memory import Memory
from mtserve_client.places import Places
from mtserve_client.protocol import CacheInfo, Call, Ranking

Tokens = tuple[tuple[int, int], ...]

USER = 5  # users share nothing; test_client_memory.py has two
PLACES = ("a", "b")
TOKENS = st.lists(st.tuples(st.integers(0, 1), st.just(0)), max_size=4).map(tuple)
KEEP = st.sampled_from([99, 99, 0, 1, 3, 6])  # of the told history: all, or a part
UNANSWERED = [ServerUnavailable, ServerFault, DeadlineExceeded]
FATES = st.sampled_from(["answered", "answered", "answered the second time", "interrupted", "timed out"])


def tokens_of(events: Events) -> Tokens:
    return tuple(zip(events.items.tolist(), events.actions.tolist(), strict=True))


class Server:
    """History semantics of docs/protocol.md."""

    def __init__(self) -> None:
        self.known: dict[int | str, Tokens] = {}
        self.basis: dict[int, Tokens] = {}  # id of an answer -> the history that it rests on
        self.answers: list[Ranking] = []  # kept, so that ids stay unique

    def execute(self, call: Call) -> Ranking | MtserveError:
        old = self.known.get(call.user, ())
        if call.start > len(old):
            return HistoryNeeded(f"tokens are needed from position {len(old)}", len(old))
        if call.start and call.prefix_digest != digest(0, Events.of(old[: call.start])):
            return HistoryNeeded("tokens are needed from position 0", 0)
        history = old[: call.start] + tokens_of(call.events)
        same = next((i for i, (a, b) in enumerate(zip(old, history, strict=False)) if a != b), None)
        same = min(len(old), len(history)) if same is None else same
        self.known[call.user] = history
        info = CacheInfo(same, 0, 0, len(history) - same, len(history))
        answer = Ranking(np.zeros((0, 1), np.float32), np.zeros(0, np.int64), info)
        self.answers.append(answer)
        self.basis[id(answer)] = history
        return answer


@dataclass(eq=False)
class UnderWay:
    """A call of the caller's that has not returned."""

    stated: Tokens
    by_new_events: bool
    exchange: Exchange
    step: Send | Pause
    outcome: Ranking | MtserveError | None = None  # of the request, once it was executed
    executed: bool = field(default=False)


class Scenarios(RuleBasedStateMachine):
    """Whole calls, alone or two at once, and requests that are executed late."""

    number = 1  # of places

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.servers = [Server() for _ in range(self.number)]
        self.calls: list[UnderWay] = []
        self.late: list[Send] = []  # given up, not executed yet
        self.told: Tokens = ()

    @initialize(tokens=st.sampled_from([0, 6, 10**6]))
    def begin(self, tokens: int) -> None:
        self.memory = Memory(users=10, tokens=tokens)
        self.places = Places(PLACES[: self.number], ["hstu"], clock=lambda: self.now)

    @rule(tail=TOKENS, new=st.booleans(), keep=KEEP, fate=FATES)
    def call_by_itself(self, tail: Tokens, new: bool, keep: int, fate: str) -> None:
        call = self.call(self.told + tail, tail) if new else self.call(self.told[:keep] + tail, None)
        if call is None:
            return
        if fate != "answered":
            self.lose_request(call, late=True)
        if fate == "interrupted":
            call.exchange.close()
            self.calls.remove(call)
        elif fate == "timed out":
            self.resume(call, DeadlineExceeded("lost"))
        elif fate == "answered the second time":
            self.resume(call, ServerUnavailable("lost"))
        self.finish(call)

    @rule(tails=st.tuples(TOKENS, TOKENS), keep=KEEP, order=st.tuples(*[st.booleans()] * 2), lost=st.booleans())
    def two_calls_at_once(self, tails: tuple[Tokens, Tokens], keep: int, order: tuple[bool, bool], lost: bool) -> None:
        told = self.told
        calls = [self.call(told + tails[0], None), self.call(told[:keep] + tails[1], None)]
        if lost and calls[0] is not None:
            self.lose_request(calls[0], late=True)
            self.resume(calls[0], ServerUnavailable("lost"))
        for call in calls[:: 1 if order[0] else -1]:
            if call is not None:
                self.execute_one(call)
        for call in calls[:: 1 if order[1] else -1]:
            self.finish(call)

    @precondition(lambda self: self.number > 1)
    @rule(tail=TOKENS, keep=KEEP, new=st.booleans(), late=st.booleans(), kind=st.sampled_from(UNANSWERED))
    def fail_over(self, tail: Tokens, keep: int, new: bool, late: bool, kind: type[MtserveError]) -> None:
        """The user's own place gives no answer; where time is left, the next one does."""
        stated = self.told + tail if new else self.told[:keep] + tail
        call = self.call(stated, tail if new else None)
        if call is not None and isinstance(call.step, Send):
            first = call.step.place
            self.lose_request(call, late)
            self.resume(call, kind("lost"))
            if isinstance(call.step, Send) and call in self.calls:
                assert call.step.place != first
            self.finish(call)

    @precondition(lambda self: self.late)
    @rule(last=st.booleans())
    def execute_late(self, last: bool) -> None:
        sent = self.late.pop(-1 if last else 0)
        self.servers[sent.place].execute(sent.call)

    @rule(kept=st.sampled_from([99, 0, 3]), more=TOKENS, data=st.data())
    def somebody_else(self, kept: int, more: Tokens, data: st.DataObject) -> None:
        """A server forgets a part of the history, or all of it; or another client makes another of it."""
        server = data.draw(st.sampled_from(self.servers))
        server.known[USER] = server.known.get(USER, ())[:kept] + more

    @property
    def server(self) -> Server:
        """Of the place that is the user's own."""
        return self.servers[self.places.order(USER)[0]]

    def call(self, stated: Tokens, new: Tokens | None) -> UnderWay | None:
        """Begin a call for `stated`, given as the whole history or as new events."""
        query = Query(
            USER,
            Events.of(stated) if new is None else None,
            None if new is None else Events.of(new),
            np.zeros(0, np.int64),
            None,
        )
        exchange = converse(self.memory, self.places, query, 100.0, Retry(), clock=lambda: self.now, draw=lambda: 0.5)
        try:
            step = next(exchange)
        except HistoryNeeded:
            assert new is not None
            return None
        self.calls.append(UnderWay(stated, new is not None, exchange, step))
        return self.calls[-1]

    def execute_one(self, call: UnderWay) -> None:
        if isinstance(call.step, Send) and not call.executed:
            call.outcome, call.executed = self.servers[call.step.place].execute(call.step.call), True

    def answer_one(self, call: UnderWay) -> None:
        if isinstance(call.step, Pause):
            self.now += call.step.seconds
            self.resume(call, None)
        elif call.executed:
            self.resume(call, call.outcome)

    def finish(self, call: UnderWay | None) -> None:
        for _ in range(8):
            if call is not None and call in self.calls:
                self.execute_one(call)
                self.answer_one(call)

    def lose_request(self, call: UnderWay, late: bool) -> None:
        if late and isinstance(call.step, Send) and not call.executed:
            self.late.append(call.step)

    def resume(self, call: UnderWay, outcome: Ranking | MtserveError | None) -> None:
        call.outcome, call.executed = None, False
        answer = None
        try:
            if isinstance(outcome, MtserveError):
                call.step = call.exchange.throw(outcome)
            else:
                call.step = call.exchange.send(outcome)
            return
        except StopIteration as end:
            answer = end.value
        except (HistoryNeeded, ServerUnavailable, ServerFault, DeadlineExceeded, InvalidRequest) as error:
            if isinstance(error, HistoryNeeded) and not call.by_new_events:
                raise  # who states the whole history is never asked for more
        self.calls.remove(call)
        if answer is not None:
            bases = [server.basis[id(answer)] for server in self.servers if id(answer) in server.basis]
            assert bases == [call.stated]
            self.told = call.stated


class AnyOrder(Scenarios):
    """The same, and the single steps of any number of calls in any order."""

    @rule(tail=TOKENS, keep=KEEP)
    def state_a_history(self, tail: Tokens, keep: int) -> None:
        self.call(self.told[:keep] + tail, None)

    @rule(tail=TOKENS)
    def state_new_events(self, tail: Tokens) -> None:
        self.call(self.told + tail, tail)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        self.execute_one(data.draw(st.sampled_from(self.calls)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.answer_one(data.draw(st.sampled_from(self.calls)))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), late=st.booleans(), kind=st.sampled_from(UNANSWERED))
    def lose(self, data: st.DataObject, late: bool, kind: type[MtserveError]) -> None:
        call = data.draw(st.sampled_from(self.calls))
        if isinstance(call.step, Send):
            self.lose_request(call, late)
            self.resume(call, kind("lost"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        if isinstance(call.step, Send) and not call.executed:
            self.resume(call, InvalidRequest("no"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), late=st.booleans())
    def interrupt(self, data: st.DataObject, late: bool) -> None:
        call = data.draw(st.sampled_from(self.calls))
        self.lose_request(call, late)
        call.exchange.close()
        self.calls.remove(call)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("machine", [Scenarios, AnyOrder])
def test_every_answer_rests_on_the_history_its_call_states(machine: type[Scenarios], number: int) -> None:
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"number": number}),
        settings=settings(
            max_examples=500, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


A, B = (0, 0), (1, 0)


@pytest.fixture
def machine() -> Scenarios:
    machine = Scenarios()
    machine.begin(tokens=10**6)
    return machine


@pytest.mark.parametrize("fate", ["interrupted", "timed out"])
def test_a_request_given_up_is_carried_out_after_another_history(machine: Scenarios, fate: str) -> None:
    machine.call_by_itself((A, A), new=False, keep=99, fate=fate)
    machine.call_by_itself((B, B), new=False, keep=99, fate="answered")
    machine.execute_late(last=True)
    machine.call_by_itself((B,), new=False, keep=99, fate="answered")
    assert machine.told == machine.server.known[USER] == (B, B, B)


def test_a_request_sent_twice_is_carried_out_again_after_another_history(machine: Scenarios) -> None:
    machine.call_by_itself((A, A), new=False, keep=99, fate="answered the second time")
    machine.call_by_itself((B, B), new=False, keep=0, fate="answered")
    machine.execute_late(last=True)
    machine.call_by_itself((B,), new=False, keep=99, fate="answered")
    assert machine.told == machine.server.known[USER] == (B, B, B)


def test_of_two_calls_at_once_the_one_that_loses_is_carried_out_again(machine: Scenarios) -> None:
    machine.two_calls_at_once(((A, A), (B, B)), keep=99, order=(True, True), lost=True)
    machine.call_by_itself((), new=False, keep=99, fate="answered")
    machine.execute_late(last=True)
    machine.call_by_itself((B,), new=False, keep=99, fate="answered")
    assert machine.told == machine.server.known[USER] == (B, B, B)
