"""What is sent, and what is remembered: single decisions. (In any order of events: test_client_model.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mtserve_client import CacheInfo, Events, HistoryNeeded, ServerFault, ServerUnavailable
from mtserve_client.digest import digest
from mtserve_client.errors import DeadlineExceeded, InvalidRequest, MtserveError
from mtserve_client.exchange import Pause, Query, Retry, Send, converse
from mtserve_client.memory import Memory
from mtserve_client.places import Places
from mtserve_client.protocol import Ranking


def history(length: int, first: int = 0) -> Events:
    return Events.of([(first + i, i % 3) for i in range(length)])


class Caller:
    """Makes calls with a clock and a server of the test's making; keeps what was sent."""

    def __init__(self, users: int = 100, tokens: int = 10**6, retry: Retry | None = None) -> None:
        self.now = 0.0
        self.memory = Memory(users, tokens)
        self.retry = retry or Retry()
        self.sent: list[tuple[int, int]] = []  # start and number of events
        self.digests: list[int] = []
        self.pauses: list[float] = []

    def call(self, user: int | str, *outcomes: MtserveError | CacheInfo | None, **given: Any) -> Any:
        """A call whose sendings meet these outcomes, then answers that say all is well."""
        query = Query(user, given.get("history"), given.get("new"), np.zeros(0, np.int64), None)
        exchange = converse(
            self.memory, Places(["a"], ["hstu"]), query, 10.0, self.retry, clock=lambda: self.now, draw=lambda: 1.0
        )
        left = list(outcomes)
        self.sent = []
        self.digests = []
        self.pauses = []
        step = next(exchange)
        try:
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                    self.pauses.append(step.seconds)
                    step = exchange.send(None)
                    continue
                assert isinstance(step, Send)
                assert 0 < step.timeout_s <= 10.0
                self.sent.append((step.call.start, len(step.call.events)))
                self.digests.append(step.call.prefix_digest)
                outcome = left.pop(0) if left else None
                if isinstance(outcome, MtserveError):
                    step = exchange.throw(outcome)
                    continue
                length = step.call.start + len(step.call.events)
                cache = outcome or CacheInfo(length, 0, 0, 0, length)
                step = exchange.send(Ranking(np.zeros((0, 1), np.float32), np.zeros(0, np.int64), cache))
        except StopIteration as end:
            return end.value
        finally:
            exchange.close()


def test_the_first_call_sends_all_and_the_next_only_the_rest() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    assert caller.sent == [(0, 100)]
    caller.call(5, history=history(103))
    assert caller.sent == [(100, 3)]
    caller.call(5, new=history(2))
    assert caller.sent == [(103, 2)]
    caller.call(5, new=Events.empty())
    assert caller.sent == [(105, 0)]


def test_a_delta_states_the_digest_of_what_it_leaves_out() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    assert caller.digests == [0]
    caller.call(5, history=history(103))
    assert (caller.sent, caller.digests) == ([(100, 3)], [digest(0, history(100))])
    caller.call(5, new=history(40, first=9))
    assert (caller.sent, caller.digests) == ([(103, 40)], [digest(0, history(103))])
    grown = history(103) + history(40, first=9)
    caller.call(5, HistoryNeeded("", 33), history=grown)
    assert (caller.sent, caller.digests) == ([(143, 0), (33, 110)], [digest(0, grown), digest(0, grown[:33])])


def test_a_history_that_differs_or_is_shorter_is_sent_whole() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    changed = history(1, first=7) + history(100)[1:]
    caller.call(5, history=changed)
    assert caller.sent == [(0, 100)]
    caller.call(5, history=changed[:60])
    assert caller.sent == [(0, 60)]


def test_five_and_the_string_five_are_two_users() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    caller.call("5", history=history(100))
    assert caller.sent == [(0, 100)]


def test_new_events_of_a_stranger_need_the_history() -> None:
    caller = Caller()
    with pytest.raises(HistoryNeeded) as caught:
        caller.call(5, new=history(1))
    assert caught.value.position == 0
    assert len(caller.memory) == 0


def test_a_server_that_forgot_is_told_from_where_it_asks() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    caller.call(5, HistoryNeeded("", 40), new=history(1))
    assert caller.sent == [(100, 1), (40, 61)]
    caller.call(5, HistoryNeeded("", 0), new=history(1))
    assert caller.sent[1:] == [(0, 102)]


def test_a_server_that_keeps_asking_is_at_fault() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    asks = [HistoryNeeded("", 60), HistoryNeeded("", 30), HistoryNeeded("", 5)]
    with pytest.raises(ServerFault, match="sent from position 30"):
        caller.call(5, *asks, new=history(1))
    with pytest.raises(ServerFault, match="sent from position 0"):
        caller.call(6, HistoryNeeded("", 3), history=history(5))


def test_without_kept_tokens_a_forgetful_server_needs_the_history_from_the_caller() -> None:
    caller = Caller(tokens=0)
    caller.call(5, history=history(100))
    assert caller.memory.tokens == 0
    caller.call(5, new=history(2))
    assert caller.sent == [(100, 2)]
    with pytest.raises(HistoryNeeded, match="only those from 102 on"):
        caller.call(5, HistoryNeeded("", 0), new=history(2))
    caller.call(5, history=history(100) + history(4))
    assert caller.sent == [(102, 2)]  # its first 102 are what was acknowledged


def test_unavailable_is_sent_again_after_growing_pauses() -> None:
    caller = Caller(retry=Retry(attempts=4, first_s=0.1, longest_s=0.3))
    caller.call(5, *[ServerUnavailable("")] * 3, history=history(3))
    assert caller.pauses == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(ServerUnavailable):
        caller.call(5, *[ServerUnavailable("")] * 4, history=history(3))


def test_a_fault_is_sent_again_once_and_a_refusal_never() -> None:
    caller = Caller()
    caller.call(5, ServerFault(""), history=history(3))
    with pytest.raises(ServerFault):
        caller.call(5, ServerFault(""), ServerFault(""), history=history(3))
    with pytest.raises(InvalidRequest):
        caller.call(5, InvalidRequest(""), history=history(3))
    assert len(caller.sent) == 1


def test_no_pause_outlasts_the_deadline() -> None:
    caller = Caller(retry=Retry(attempts=100, first_s=4.0, longest_s=4.0))
    with pytest.raises(ServerUnavailable):
        caller.call(5, *[ServerUnavailable("")] * 9, history=history(3))
    assert caller.pauses == [4.0, 4.0]
    with pytest.raises(DeadlineExceeded, match="within 10 s"):
        caller.call(5, DeadlineExceeded("from the transport"), history=history(3))


def test_a_failed_call_changes_nothing_and_can_be_made_again() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    with pytest.raises(DeadlineExceeded):
        caller.call(5, DeadlineExceeded(""), new=history(3))
    caller.call(5, new=history(3))
    assert caller.sent == [(100, 3)]
    caller.call(5, new=history(1))
    assert caller.sent == [(103, 1)]


def test_users_seen_longest_ago_lose_their_events_first_and_then_everything() -> None:
    caller = Caller(users=3, tokens=250)
    for user in (1, 2, 3):
        caller.call(user, history=history(100))
    assert caller.memory.tokens == 200
    with pytest.raises(HistoryNeeded):
        caller.call(1, HistoryNeeded("", 0), new=history(1))
    caller.call(2, HistoryNeeded("", 0), new=history(1))
    caller.call(4, history=history(100))
    assert len(caller.memory) == 3
    with pytest.raises(HistoryNeeded, match="nothing is remembered of this user"):
        caller.call(3, new=history(1))


def test_a_history_too_long_to_keep_is_still_extended() -> None:
    caller = Caller(tokens=50)
    caller.call(5, history=history(100))
    caller.call(5, new=history(1))
    assert caller.sent == [(100, 1)]
    assert caller.memory.tokens == 0


def test_forgetting_a_user_sends_the_whole_history_next() -> None:
    caller = Caller()
    caller.call(5, history=history(100))
    caller.memory.forget(5)
    caller.memory.forget(6)
    assert caller.memory.tokens == 0
    with pytest.raises(HistoryNeeded):
        caller.call(5, new=history(1))
    caller.call(5, history=history(101))
    assert caller.sent == [(0, 101)]
