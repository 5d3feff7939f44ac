"""Where users belong, which places are asked when some are down, and what other languages must compute."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from mtserve_client import (
    DeadlineExceeded,
    Events,
    HistoryNeeded,
    InvalidRequest,
    RankingClient,
    ServerFault,
    ServerUnavailable,
)
from mtserve_client import placement as of_client
from mtserve_client.errors import MtserveError
from mtserve_client.exchange import Pause, Query, Retry, Send, converse, erase
from mtserve_client.memory import Memory
from mtserve_client.places import FIRST_S, LONGEST_S, STRIKES, Places
from mtserve_client.protocol import CacheInfo, Ranking

from mtserve_backend.routing import placement as of_router

USERS = [*range(1, 10_001), *(f"user-{n}" for n in range(10_000))]
SERVERS = [f"server-{n}:8001" for n in range(6)]


def test_other_languages_compute_the_same() -> None:
    """The examples of docs/routing.md."""
    assert of_client.digest(5) == "155b24bd53bf6ca0332bb8a119e36769"
    assert of_client.digest("5") == "6a989a395cc42867c5b5329fa09aa08f"
    assert of_client.digest("alice") == "18b1f70d43b04fe40334d71c199e838a"
    assert of_client.keyed_digest(5, "a secret") == "36f816818ed2e29890516a94a2240137"
    assert of_client.preference(["a:8001", "b:8001", "c:8001"], of_client.digest("alice")) == [1, 2, 0]
    assert [of_client.preference(["hstu_0", "hstu_1"], of_client.digest(user))[0] for user in (5, 9, 10)] == [1, 1, 0]


def test_the_router_follows_the_clients_rule() -> None:
    for user in USERS[::97]:
        assert of_client.digest(user) == of_router.digest(user)
        for names in (SERVERS, ["hstu_0", "hstu_1"]):
            of_user = of_client.digest(user)
            assert of_client.preference(names, of_user) == of_router.preference(names, of_user)


def test_users_are_divided_evenly_and_a_server_that_is_added_takes_its_share_from_all() -> None:
    five, six = Places(SERVERS[:5], ["hstu"]), Places(SERVERS, ["hstu"])
    before = {user: five.order(user)[0] for user in USERS}
    after = {user: six.order(user)[0] for user in USERS}
    assert all(abs(count / len(USERS) - 1 / 5) < 0.02 for count in Counter(before.values()).values())
    moved = [user for user in USERS if before[user] != after[user]]
    assert {after[user] for user in moved} == {5}
    assert abs(len(moved) / len(USERS) - 1 / 6) < 0.02
    assert set(Counter(before[user] for user in moved)) == {0, 1, 2, 3, 4}


def test_the_users_of_a_server_that_is_gone_are_divided_among_all_others() -> None:
    places = Places(SERVERS, ["hstu"])
    second = Counter(order[1] for order in map(places.order, USERS) if order[0] == 0)
    assert set(second) == {1, 2, 3, 4, 5}
    assert max(second.values()) < 1.2 * min(second.values())


def test_every_model_of_the_users_server_comes_before_the_next_server() -> None:
    places = Places(SERVERS[:3], ["hstu_0", "hstu_1"])
    for user in USERS[:100]:
        order = places.order(user)
        assert sorted(order) == list(range(6))
        assert [place // 2 for place in order[::2]] == [place // 2 for place in order[1::2]]
        assert order[0] % 2 == of_router.preference(["hstu_0", "hstu_1"], of_router.digest(user))[0]
    assert places.name(3) == "hstu_1 on server-1:8001"


class Fleet:
    """Servers that answer, or fail as told; a clock; what was sent where."""

    def __init__(self, servers: int = 3, tokens: int = 10**6, retry: Retry | None = None) -> None:
        self.now = 0.0
        self.memory = Memory(100, tokens)
        self.places = Places(SERVERS[:servers], ["hstu"], clock=lambda: self.now)
        self.retry = retry or Retry()
        self.fails: dict[int, type[MtserveError]] = {}
        self.known: dict[int, int] = {}
        self.sent: list[tuple[int, int, float]] = []  # place, start, timeout
        self.pauses = 0

    def call(self, user: int, history: Events | None = None, new: Events | None = None) -> int:
        """The place that answered."""
        self.sent, self.pauses = [], 0
        query = Query(user, history, new, np.zeros(0, np.int64), None)
        return self._drive(converse(self.memory, self.places, query, 10.0, self.retry, lambda: self.now, lambda: 1.0))

    def forget(self, user: int) -> int:
        self.sent, self.pauses = [], 0
        return self._drive(erase(self.memory, self.places, user, 9.0, self.retry, lambda: self.now, lambda: 1.0))

    def _drive(self, exchange: object) -> int:
        step = next(exchange)  # type: ignore[call-overload]
        try:
            while True:
                if isinstance(step, Pause):
                    self.now += step.seconds
                    self.pauses += 1
                    step = exchange.send(None)  # type: ignore[attr-defined]
                    continue
                assert isinstance(step, Send)
                self.sent.append((step.place, step.call.start, step.timeout_s))
                failure = self.fails.get(step.place)
                if failure is DeadlineExceeded:
                    self.now += step.timeout_s
                if failure is not None:
                    step = exchange.throw(failure("no"))  # type: ignore[attr-defined]
                elif step.call.start > self.known.get(step.place, 0):
                    step = exchange.throw(HistoryNeeded("", self.known.get(step.place, 0)))  # type: ignore[attr-defined]
                else:
                    length = step.call.start + len(step.call.events)
                    new = length - min(length, self.known.get(step.place, 0))
                    self.known[step.place] = length
                    cache = CacheInfo(length - new, 0, 0, new, length)
                    step = exchange.send(Ranking(np.zeros((0, 1), np.float32), np.zeros(0, np.int64), cache))  # type: ignore[attr-defined]
        except StopIteration:
            return self.sent[-1][0]


def history(length: int) -> Events:
    return Events.of([(i, i % 3) for i in range(length)])


@pytest.mark.parametrize("failure", [ServerUnavailable, ServerFault])
def test_the_next_place_is_asked_at_once_and_sent_what_it_needs(failure: type[MtserveError]) -> None:
    fleet = Fleet()
    first, second, _ = fleet.places.order(7)
    assert fleet.call(7, history(100)) == first
    fleet.fails[first] = failure
    assert fleet.call(7, new=history(2)) == second
    assert [(place, start) for place, start, _ in fleet.sent] == [(first, 100), (second, 0)]
    assert fleet.pauses == 0
    assert fleet.call(7, new=history(2)) == second
    assert fleet.sent[-1][:2] == (second, 102), "a delta, now that this place knows the user"


def test_a_place_that_is_down_is_asked_now_and_then_and_gets_its_users_back() -> None:
    fleet = Fleet()
    first, second, _ = fleet.places.order(7)
    fleet.call(7, history(50))
    fleet.fails[first] = ServerUnavailable
    for _ in range(STRIKES):
        assert fleet.call(7, history(50)) == second
        assert len(fleet.sent) == 2
    for _ in range(5):
        fleet.call(7, history(50))
        assert len(fleet.sent) == 1, "it is down: nobody asks"
    asked = 0
    for _ in range(1000):
        fleet.now += 0.1
        fleet.call(7, history(50))
        asked += len(fleet.sent) - 1
    assert 100 / LONGEST_S - 1 <= asked <= 100 / LONGEST_S + 8
    del fleet.fails[first]
    fleet.known[first] = 0  # it was started again
    fleet.now += LONGEST_S
    assert fleet.call(7, history(51)) == first
    assert fleet.known[first] == 51


def test_two_calls_do_not_both_ask_a_place_that_is_down() -> None:
    now = 0.0
    places = Places(SERVERS[:2], ["hstu"], clock=lambda: now)
    for _ in range(STRIKES):
        places.failed(0)
    now = FIRST_S
    assert [places.choose([0, 1], set()) for _ in range(3)] == [0, 1, 1]
    places.answered(0)
    assert places.choose([0, 1], set()) == 0


def test_where_all_are_down_all_are_tried_again_after_a_pause() -> None:
    fleet = Fleet(retry=Retry(attempts=3))
    fleet.fails = dict.fromkeys(range(3), ServerUnavailable)
    with pytest.raises(ServerUnavailable):
        fleet.call(7, history(5))
    assert len(fleet.sent) == 9
    assert fleet.pauses == 2


def test_a_refusal_is_nobodys_failure() -> None:
    fleet = Fleet()
    fleet.fails = dict.fromkeys(range(3), InvalidRequest)
    for _ in range(STRIKES + 1):
        with pytest.raises(InvalidRequest):
            fleet.call(7, history(5))
        assert len(fleet.sent) == 1
    fleet.fails = {}
    assert fleet.call(7, history(5)) == fleet.places.order(7)[0]


def test_a_place_that_says_nothing_costs_its_share_of_the_time() -> None:
    fleet = Fleet(retry=Retry(place_s=2.0))
    first, second, _ = fleet.places.order(7)
    fleet.fails[first] = DeadlineExceeded
    assert fleet.call(7, history(5)) == second
    assert fleet.now == 2.0
    fleet.fails = dict.fromkeys(range(3), DeadlineExceeded)
    with pytest.raises(DeadlineExceeded, match="within 10 s"):
        fleet.call(7, history(5))
    assert [seconds for _, _, seconds in fleet.sent] == [2.0, 2.0, 6.0]


def test_without_kept_events_the_next_place_needs_the_history_from_the_caller() -> None:
    fleet = Fleet(tokens=0)
    first, second, _ = fleet.places.order(7)
    fleet.call(7, history(100))
    fleet.fails[first] = ServerUnavailable
    with pytest.raises(HistoryNeeded, match="pass history="):
        fleet.call(7, new=history(1))
    assert fleet.call(7, history(101)) == second


def test_every_place_forgets_a_user_and_the_one_that_did_not_is_told() -> None:
    fleet = Fleet()
    order = fleet.places.order(7)
    fleet.forget(7)
    assert [place for place, *_ in fleet.sent] == order
    fleet.fails[order[0]] = ServerUnavailable
    with pytest.raises(ServerUnavailable):
        fleet.forget(7)
    assert {place for place, *_ in fleet.sent} == set(order)
    fleet.fails[order[0]] = DeadlineExceeded
    with pytest.raises(DeadlineExceeded):
        fleet.forget(7)
    assert [place for place, *_ in fleet.sent] == order


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"url": []}, "names no server"),
        ({"url": ["a:8001", "A:8001"]}, "given twice"),
        ({"url": {"": "a:8001"}}, "name is a string"),
        ({"model": []}, "the model's name"),
        ({"model": ["hstu_0", "hstu_0"]}, "given twice"),
        ({"cert_file": "a.pem"}, "go together"),
        ({"ca_file": "/no/such/file.pem"}, "cannot be read"),
    ],
)
def test_options_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        RankingClient(**given)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        Retry(place_s=0.0)
