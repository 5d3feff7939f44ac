"""Least-recently-used order over users, O(1) for every operation on one user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(Generic[K, V]):
    """A hash map on a doubly linked list, oldest first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def touch(self, key: K, value: V) -> None:
        """Insert, or make the most recently used."""
        self._entries[key] = value
        self._entries.move_to_end(key)

    def discard(self, key: K) -> None:
        self._entries.pop(key, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """Oldest first."""
        return iter(self._entries.items())

    def victims(self, needed: int, size: Callable[[V], int], spare: Callable[[V], bool]) -> list[V] | None:
        """The oldest entries that together give up `needed`, skipping those to `spare`; None if they cannot.

        All or nothing, so that nobody is evicted for a request that cannot be served anyway.
        """
        chosen: list[V] = []
        for value in self._entries.values():
            if needed <= 0:
                break
            if not spare(value):
                chosen.append(value)
                needed -= size(value)
        return chosen if needed <= 0 else None
