"""Events, user IDs, candidates, URLs: what is taken and what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mtserve_client import Events, InvalidRequest, Retry
from mtserve_client.address import Address
from mtserve_client.base import check_timeout
from mtserve_client.events import EVENT_BYTES
from mtserve_client.placement import digest
from mtserve_client.protocol import check_candidates, check_top_k
from mtserve_client.transport import Headers
from mtserve_client.users import check_user

PAIRS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)))


def test_events_own_read_only_copies() -> None:
    items = np.array([1, 2, 3])
    events = Events(items, [1, 0, 1])  # type: ignore[arg-type]
    items[0] = 9
    assert events.items.tolist() == [1, 2, 3]
    assert (events.items.dtype, events.actions.dtype) == (np.int64, np.int32)
    with pytest.raises(ValueError, match="read-only"):
        events.items[0] = 9


@given(PAIRS, PAIRS)
def test_events_pack_in_order_and_unpack_to_the_same(first: Any, second: Any) -> None:
    both = Events.of(first) + second
    assert both == Events.of(first + second)
    assert Events.unpack(both.pack()) == both
    assert both.pack() == Events.of(first).pack() + Events.of(second).pack()
    assert len(both.pack()) == EVENT_BYTES * len(both)
    assert both[len(first) :] == Events.of(second)


@pytest.mark.parametrize(
    ("items", "actions", "words"),
    [
        ([1, 2], [1], "equal length, got 2 and 1"),
        ([1.5], [1], "items must be integers"),
        ([True], [1], "items must be integers"),
        (["1"], [1], "items must be integers"),
        ([[1]], [1], "items must have one dimension"),
        ([2**63], [1], "items must lie in"),
        ([2**70], [1], "items must lie in"),
        ([1], [2**31], "actions must lie in"),
        ([1], None, "actions must have one dimension"),
    ],
)
def test_events_refused(items: Any, actions: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Events(items, actions)


@pytest.mark.parametrize("events", [5, "12", [1, 2], [(1, 2, 3)], {"items": [1]}])
def test_not_events(events: Any) -> None:
    with pytest.raises(InvalidRequest, match="pairs"):
        Events.of(events)


@pytest.mark.parametrize("user", [1, 2**64 - 1, "5", "x" * 128, "é" * 64])
def test_users_taken(user: int | str) -> None:
    assert check_user(user) == user


def test_numpy_integers_are_users() -> None:
    assert type(check_user(np.int64(5))) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (0, "lies in 1"),
        (-1, "lies in 1"),
        (2**64, "lies in 1"),
        (True, "got bool"),
        (5.0, "got float"),
        (None, "got NoneType"),
        ("", "1 to 128 bytes"),
        ("x" * 129, "1 to 128 bytes of UTF-8, this one 129"),
        ("é" * 65, "this one 130"),
        ("a\0b", "NUL"),
        ("\ud800", "Unicode"),
    ],
)
def test_users_refused(user: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_user(user)


def test_candidates_may_be_none_at_all_but_not_fractions() -> None:
    assert check_candidates([]).shape == (0,)
    with pytest.raises(InvalidRequest, match="candidates must be integers"):
        check_candidates([1.0])


@pytest.mark.parametrize("top_k", [0, -1, True, 1.0, "3"])
def test_top_k_refused(top_k: Any) -> None:
    with pytest.raises(InvalidRequest, match="top_k"):
        check_top_k(top_k)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), "5", True])
def test_timeouts_refused(timeout_s: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s"):
        check_timeout(timeout_s)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8001", Address(False, False, "localhost", 8001, "")),
        ("localhost", Address(False, False, "localhost", 8001, "")),
        ("grpc://host:1", Address(False, False, "host", 1, "")),
        ("grpcs://host", Address(False, True, "host", 443, "")),
        ("http://host", Address(True, False, "host", 8000, "")),
        ("https://host/base/", Address(True, True, "host", 443, "/base")),
        ("http://[::1]:8000", Address(True, False, "::1", 8000, "")),
    ],
)
def test_urls(url: str, expected: Address) -> None:
    assert Address.parse(url) == expected


@pytest.mark.parametrize("url", ["", "ftp://host", "host:port", "host:99999", "grpc://host/path", "http://"])
def test_urls_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="URL"):
        Address.parse(url)


def test_an_ipv6_target_keeps_its_brackets() -> None:
    assert Address.parse("http://[::1]:8000").target == "[::1]:8000"


def test_headers_carry_the_user_for_a_load_balancer() -> None:
    plain = Headers({"X-Team": "a"}, route="X-Route")
    assert plain.of("ä b") == {"x-team": "a", "x-route": digest("ä b")}
    keyed = Headers(route="X-Route", route_key="a secret").of(5)["x-route"]
    assert keyed == Headers(route="X-Route", route_key="a secret").of(5)["x-route"]
    assert keyed not in (plain.of(5)["x-route"], Headers(route="X-Route", route_key="another").of(5)["x-route"])
    assert Headers().of(5) == {}


def test_pauses_double_up_to_the_longest_and_are_drawn_from_their_upper_half() -> None:
    retry = Retry(first_s=0.1, longest_s=0.5)
    assert [retry.pause_s(n, 1.0) for n in (1, 2, 3, 4)] == pytest.approx([0.1, 0.2, 0.4, 0.5])
    assert retry.pause_s(1, 0.0) == pytest.approx(0.05)
    with pytest.raises(InvalidRequest):
        Retry(attempts=0)
