"""A pool of slot numbers (device pages, onload pages or host chunks) with a reference count each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]

NO_SLOTS: Slots = np.empty(0, dtype=np.int64)

# In the counts' own type: numpy's `add.at` is ten times slower where it has to convert.
ONE = np.ones(1, dtype=np.int32)


class SlotError(RuntimeError):
    """The pool was asked for what would corrupt it: an ID out of range, or a release of what is not held."""


class SlotPool:
    """Slots `first .. first + size - 1`. A slot is free exactly while its reference count is zero."""

    def __init__(self, name: str, size: int, first: int = 0, note_freed: bool = False) -> None:
        self.name, self.size, self.first = name, size, first
        self._freed: list[Slots] | None = [] if note_freed else None
        self._references = np.zeros(size, dtype=np.int32)
        # A stack whose top hands out ascending numbers: neighbours in a history become neighbours in memory.
        self._stack: Slots = np.arange(size - 1, -1, -1, dtype=np.int64)
        self._top = size

    @property
    def free(self) -> int:
        return self._top

    @property
    def used(self) -> int:
        return self.size - self._top

    def allocate(self, count: int, references: int = 1) -> Slots:
        """`count` slots with so many references each. Raises `SlotError` if fewer are free: ask `free` first."""
        if not 0 <= count <= self._top:
            raise SlotError(f"{self.name}: {count} slots asked for, {self._top} of {self.size} free")
        taken = self._stack[self._top - count : self._top][::-1].copy()
        self._top -= count
        self._references[taken] = references
        return taken + self.first

    def hold(self, slots: Slots) -> None:
        """One more reference on each slot; raises `SlotError` if one of them is free."""
        if not len(slots):
            return
        index = self._index(slots)
        if np.count_nonzero(self._references[index] <= 0):
            raise SlotError(f"{self.name}: hold on free slots {self._named(index, self._references[index] <= 0)}")
        np.add.at(self._references, index, ONE)

    def release(self, slots: Slots) -> None:
        """One reference less on each; slots at zero become free. Raises `SlotError` below zero, changing nothing."""
        if not len(slots):
            return
        index = self._index(slots)
        np.subtract.at(self._references, index, ONE)
        left = self._references[index]
        if np.count_nonzero(left):  # some are not free now, or never were held
            if np.count_nonzero(left < 0):
                np.add.at(self._references, index, ONE)
                raise SlotError(f"{self.name}: release of slots that are not held {self._named(index, left < 0)}")
            index = index[left == 0]
            if not len(index):
                return
        freed = _descending(index)
        self._stack[self._top : self._top + len(freed)] = freed
        self._top += len(freed)
        if self._freed is not None:
            self._freed.append(freed + self.first)

    def take_freed(self) -> Slots:
        """Slots that became free since the last call, whoever has them now; nothing unless they are noted."""
        if not self._freed:
            return NO_SLOTS
        freed, self._freed = np.concatenate(self._freed), []
        return freed

    def references(self, slot: int) -> int:
        return int(self._references[slot - self.first])

    def check(self, expected: npt.NDArray[np.int32]) -> None:
        """Raises `SlotError` unless the counts are `expected` and the free stack holds exactly the rest."""
        if not np.array_equal(self._references, expected):
            wrong = np.nonzero(self._references != expected)[0][:8]
            raise SlotError(
                f"{self.name}: slots {(wrong + self.first).tolist()} hold {self._references[wrong].tolist()}, "
                f"their owners account for {expected[wrong].tolist()} references"
            )
        free = np.sort(self._stack[: self._top])
        if not np.array_equal(free, np.nonzero(self._references == 0)[0]):
            raise SlotError(f"{self.name}: the free list and the reference counts disagree")

    def _index(self, slots: Slots) -> Slots:
        """Of at least one slot. As unsigned numbers negative ones are the largest; `argmax` is faster than `max`."""
        index = np.asarray(slots, dtype=np.int64)
        if self.first:
            index = index - self.first
        if not 0 <= index[index.view(np.uint64).argmax()] < self.size:
            raise SlotError(
                f"{self.name}: slots {slots.tolist()} are not all in {self.first}..{self.first + self.size - 1}"
            )
        return index

    def _named(self, index: Slots, wrong: npt.NDArray[np.bool_]) -> list[int]:
        return [int(slot) for slot in (index[wrong] + self.first)[:8]]


def _descending(index: Slots) -> Slots:
    """Each number once, largest first. Nearly always each is there once already."""
    ordered = np.sort(index)
    if np.count_nonzero(ordered[1:] == ordered[:-1]):
        ordered = np.unique(ordered)
    return ordered[::-1]
