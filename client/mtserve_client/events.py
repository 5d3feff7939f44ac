"""What a user did: items and the actions taken on them, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtserve_client.errors import InvalidRequest

# One event as stored and hashed: 12 bytes, little-endian whatever the machine.
_PACKED = np.dtype([("item", "<i8"), ("action", "<i4")])
EVENT_BYTES = _PACKED.itemsize


@dataclass(frozen=True, eq=False)
class Events:
    """A run of events, oldest first. Owns read-only copies of what it is given.

    Args:
        items: item IDs, `[n]`, any integers that fit int64.
        actions: the action taken on each item, `[n]`, any integers that fit int32.

    Raises:
        InvalidRequest: not one-dimensional, not integers, out of range, or of different lengths.
    """

    items: NDArray[np.int64]
    actions: NDArray[np.int32]

    def __post_init__(self) -> None:
        items = integers(self.items, np.int64, "items")
        actions = integers(self.actions, np.int32, "actions")
        if len(items) != len(actions):
            raise InvalidRequest(f"items and actions must be of equal length, got {len(items)} and {len(actions)}")
        object.__setattr__(self, "items", items)
        object.__setattr__(self, "actions", actions)

    @classmethod
    def empty(cls) -> Events:
        """No events."""
        return cls.of([])

    @classmethod
    def of(cls, events: EventsLike) -> Events:
        """`events` itself, or the Events that a sequence of (item, action) pairs says.

        Raises:
            InvalidRequest: neither Events nor a sequence of pairs of integers.
        """
        if isinstance(events, Events):
            return events
        if isinstance(events, (str, bytes)) or not isinstance(events, Iterable):
            raise InvalidRequest(f"events must be Events or (item, action) pairs, got {type(events).__name__}")
        pairs = list(events)
        try:
            items, actions = [item for item, _ in pairs], [action for _, action in pairs]
        except (TypeError, ValueError):
            raise InvalidRequest("events must be Events or (item, action) pairs") from None
        return cls(items, actions)  # type: ignore[arg-type]  # checked and converted by __post_init__

    @classmethod
    def unpack(cls, packed: bytes) -> Events:
        """The events that `pack` packed."""
        records = np.frombuffer(packed, dtype=_PACKED)
        return cls(records["item"], records["action"])

    def pack(self) -> bytes:
        """The events as bytes, EVENT_BYTES for each. Equal events give equal bytes."""
        records = np.empty(len(self), dtype=_PACKED)
        records["item"], records["action"] = self.items, self.actions
        return records.tobytes()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, part: slice) -> Events:
        if not isinstance(part, slice):
            raise TypeError("Events are sliced, as in events[-10:]; for one event read .items and .actions")
        return Events(self.items[part], self.actions[part])

    def __add__(self, later: EventsLike) -> Events:
        later = Events.of(later)
        return Events(np.concatenate([self.items, later.items]), np.concatenate([self.actions, later.actions]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Events):
            return NotImplemented
        return np.array_equal(self.items, other.items) and np.array_equal(self.actions, other.actions)

    __hash__ = None  # type: ignore[assignment]


# What `rank` and `warm` take for events.
EventsLike = Events | Sequence[tuple[int, int]]


def integers(values: Any, dtype: type[np.int64] | type[np.int32], name: str) -> NDArray[Any]:
    """`values` as a read-only one-dimensional copy of type `dtype`.

    Raises:
        InvalidRequest: not one-dimensional, not integers, or out of the type's range.
    """
    try:
        given = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{name} must be a sequence of integers: {error}") from None
    if given.ndim != 1:
        raise InvalidRequest(f"{name} must have one dimension, got shape {list(given.shape)}")
    limits = np.iinfo(dtype)
    if given.size == 0:
        given = given.astype(dtype)
    elif given.dtype.kind == "O" and all(isinstance(v, int) and not isinstance(v, bool) for v in given):
        raise InvalidRequest(f"{name} must lie in {limits.min} to {limits.max}")
    elif given.dtype.kind not in "iu":
        raise InvalidRequest(f"{name} must be integers, got values of type {given.dtype}")
    elif int(given.min()) < limits.min or int(given.max()) > limits.max:
        raise InvalidRequest(f"{name} must lie in {limits.min} to {limits.max}, got {given.min()} to {given.max()}")
    owned = np.array(given, dtype=dtype)
    owned.flags.writeable = False
    return owned
