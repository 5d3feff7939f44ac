"""Least-recently-used order, and victims chosen all or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtserve_backend.cache.lru import LRU


def filled(*keys: str) -> LRU[str, str]:
    lru: LRU[str, str] = LRU()
    for key in keys:
        lru.touch(key, key.upper())
    return lru


def nobody(value: str) -> bool:
    return False


def one(value: str) -> int:
    return 1


def test_oldest_first() -> None:
    assert list(filled("a", "b", "c", "a").items()) == [("b", "B"), ("c", "C"), ("a", "A")]


def test_get_does_not_touch() -> None:
    lru = filled("a", "b")
    assert lru.get("a") == "A"
    assert lru.get("z") is None
    assert [key for key, _ in lru.items()] == ["a", "b"]


def test_discard_of_a_stranger_is_nothing() -> None:
    lru = filled("a")
    lru.discard("z")
    assert len(lru) == 1
    lru.discard("a")
    assert "a" not in lru


@pytest.mark.parametrize(
    ("needed", "expected"), [(-1, []), (0, []), (1, ["A"]), (2, ["A", "B"]), (3, ["A", "B", "C"]), (4, None)]
)
def test_victims_are_the_oldest_and_all_or_none(needed: int, expected: list[str] | None) -> None:
    assert filled("a", "b", "c").victims(needed, one, nobody) == expected


@pytest.mark.parametrize(("spared", "expected"), [("A", ["B", "C"]), ("AB", None), ("C", ["A", "B"])])
def test_the_spared_are_skipped(spared: str, expected: list[str] | None) -> None:
    assert filled("a", "b", "c").victims(2, one, lambda value: value in spared) == expected


def test_choosing_victims_evicts_nobody() -> None:
    lru = filled("a", "b")
    lru.victims(1, one, nobody)
    assert len(lru) == 2


@given(st.lists(st.tuples(st.sampled_from(["touch", "discard"]), st.integers(0, 5)), max_size=40))
def test_against_a_plain_list(operations: list[tuple[str, int]]) -> None:
    lru: LRU[int, int] = LRU()
    model: list[int] = []
    for operation, key in operations:
        call: Callable[[], None] = (
            (lambda k=key: lru.touch(k, -k)) if operation == "touch" else (lambda k=key: lru.discard(k))
        )
        call()
        if key in model:
            model.remove(key)
        if operation == "touch":
            model.append(key)
        assert list(lru.items()) == [(k, -k) for k in model]
        assert len(lru) == len(model)
