"""The pool of slot numbers: what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtserve_backend.cache.slots import SlotError, SlotPool


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def counts(pool: SlotPool) -> list[int]:
    return [pool.references(slot) for slot in range(pool.first, pool.first + pool.size)]


def refused(pool: SlotPool, call: object, message: str) -> None:
    """`call` raises and leaves the pool as it was."""
    before, free = counts(pool), pool.free
    with pytest.raises(SlotError, match=message):
        call()  # type: ignore[operator]
    assert (counts(pool), pool.free) == (before, free)
    pool.check(np.array(before, dtype=np.int32))


def test_allocates_neighbours_in_ascending_order() -> None:
    pool = SlotPool("pages", 8, first=100)
    assert pool.allocate(3).tolist() == [100, 101, 102]
    assert pool.allocate(2).tolist() == [103, 104]
    assert (pool.free, pool.used) == (3, 5)


def test_an_allocation_of_nothing_is_nothing() -> None:
    pool = SlotPool("pages", 0)
    assert pool.allocate(0).tolist() == []
    pool.release(slots())
    pool.hold(slots())
    assert pool.free == 0


def test_a_slot_is_free_only_after_its_last_release() -> None:
    pool = SlotPool("pages", 2)
    taken = pool.allocate(1)
    pool.hold(taken)
    pool.release(taken)
    assert pool.free == 1
    pool.release(taken)
    assert pool.free == 2


def test_a_double_free_is_refused() -> None:
    pool = SlotPool("pages", 4)
    taken = pool.allocate(3)
    pool.release(taken[1:2])
    refused(pool, lambda: pool.release(taken), r"not held \[1\]")


def test_a_slot_twice_in_one_release_needs_two_references() -> None:
    pool = SlotPool("pages", 4)
    taken = pool.allocate(1)
    refused(pool, lambda: pool.release(np.repeat(taken, 2)), "not held")
    pool.hold(taken)
    pool.release(np.repeat(taken, 2))
    assert pool.free == 4
    pool.check(np.zeros(4, dtype=np.int32))


def test_a_free_slot_cannot_be_held() -> None:
    pool = SlotPool("pages", 4)
    taken = pool.allocate(1)
    refused(pool, lambda: pool.hold(np.concatenate((taken, slots(3)))), r"hold on free slots \[3\]")


@pytest.mark.parametrize("wrong", [9, 14, -1])
def test_numbers_out_of_range_are_refused(wrong: int) -> None:
    pool = SlotPool("pages", 4, first=10)
    taken = pool.allocate(1)
    refused(pool, lambda: pool.release(np.append(taken, wrong)), "not all in 10..13")
    refused(pool, lambda: pool.hold(np.append(taken, wrong)), "not all in 10..13")


def test_more_than_is_free_is_refused_with_the_numbers() -> None:
    pool = SlotPool("host chunks", 4)
    pool.allocate(1)
    refused(pool, lambda: pool.allocate(4), "host chunks: 4 slots asked for, 3 of 4 free")


def test_fewer_than_none_is_refused() -> None:
    pool = SlotPool("pages", 4)
    pool.allocate(2)
    refused(pool, lambda: pool.allocate(-1), "-1 slots asked for")


def test_check_finds_a_reference_nobody_accounts_for() -> None:
    pool = SlotPool("pages", 3)
    pool.allocate(2)
    with pytest.raises(SlotError, match=r"slots \[1\] hold \[1\], their owners account for \[0\]"):
        pool.check(np.array([1, 0, 0], dtype=np.int32))


@given(st.data())
def test_any_sequence_keeps_counts_and_the_free_list_exact(data: st.DataObject) -> None:
    """Against a multiset of references, with refusals among the operations."""
    size, first = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 3))
    pool, model = SlotPool("pages", size, first), Counter[int]()
    some = st.lists(st.integers(first, first + size), max_size=4).map(lambda numbers: slots(*numbers))
    for _ in range(data.draw(st.integers(0, 25))):
        operation = data.draw(st.sampled_from(["allocate", "hold", "release"]))
        after = model.copy()
        if operation == "allocate":
            count = data.draw(st.integers(0, size + 1))
            legal = count <= size - sum(model[slot] > 0 for slot in model)
            if legal:
                taken = pool.allocate(count)
                assert all(model[int(slot)] == 0 for slot in taken)
                assert len(set(taken.tolist())) == count
                after.update(taken.tolist())
        else:
            chosen = data.draw(some)
            change = 1 if operation == "hold" else -1
            for slot in chosen.tolist():
                after[slot] += change
            legal = all(first <= slot < first + size for slot in chosen.tolist()) and (
                all(model[slot] > 0 for slot in chosen.tolist())
                if operation == "hold"
                else all(after[slot] >= 0 for slot in chosen.tolist())
            )
            if legal:
                getattr(pool, operation)(chosen)
            else:
                refused(pool, lambda operation=operation, chosen=chosen: getattr(pool, operation)(chosen), "pages")
        if legal:
            model = after
        pool.check(np.array([model[first + i] for i in range(size)], dtype=np.int32))
        assert pool.free == sum(model[first + i] == 0 for i in range(size))
