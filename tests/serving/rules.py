"""docs/protocol.md as a predicate and a memory, written from the document: what must become of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mtserve_backend.cache.digest import digest
from tests.serving.stub import Request

TYPES = {"HISTORY_ITEMS": "int64", "HISTORY_ACTIONS": "int32", "HISTORY_START": "int64", "CANDIDATES": "int64"}


@dataclass(frozen=True)
class Limits:
    items: int
    actions: int
    events: int
    candidates: int
    id_bytes: int


@dataclass(frozen=True)
class Known:
    """A history from the position `start` on, where the model's window begins.

    `before` is the digest of all that was earlier; None: no request has said.
    """

    start: int = 0
    events: tuple[tuple[int, int], ...] = ()
    before: int | None = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.events)

    def digest_before(self, position: int) -> int | None:
        """For a position in `start .. stop`."""
        return plus(self.before, self.start, self.events[: position - self.start])


def plus(before: int | None, start: int, events: Sequence[tuple[int, int]]) -> int | None:
    """The digest of what has the digest `before`, and of events after it."""
    if before is None:
        return None
    items, actions = [item for item, _ in events], [action for _, action in events]
    return (before + digest(start, np.array(items, dtype=np.int64), np.array(actions, dtype=np.int32))) % 2**64


@dataclass(frozen=True)
class Expected:
    """A code and, where it is NOT_FOUND, the position; or, without a code, the user's history afterwards."""

    code: str | None
    position: int = 0
    history: Known | None = None
    top_k: int | None = None
    forgets: bool = False


@dataclass
class Rules:
    """Every user's history, as the requests so far have stated it. Users are forgotten by nobody here: pools and logs
    are large enough. `window_start` is where the model begins to encode a history of a given length.
    """

    limits: Limits
    window_start: Callable[[int], int]
    known: dict[int | str, Known] = field(default_factory=dict)

    def expect(self, request: Request) -> Expected:
        if not self._readable(request):
            return Expected("INVALID_ARG")
        values = {name: request.tensors[name][0].tolist() for name in TYPES}
        parameters = json.loads(request.parameter_text or "{}")
        user = request.correlation_id() or None
        items, actions, candidates = values["HISTORY_ITEMS"], values["HISTORY_ACTIONS"], values["CANDIDATES"]
        (start,) = values["HISTORY_START"]
        forgets = parameters.get("forget", False)
        stated = None if parameters.get("prefix_digest") is None else int(parameters["prefix_digest"], 16)
        allowed = (
            start >= 0
            and len(items) == len(actions)
            and len(items) <= self.limits.events
            and len(candidates) <= self.limits.candidates
            and start + len(items) < 2**31
            and all(0 <= item < self.limits.items for item in items + candidates)
            and all(0 <= action < self.limits.actions for action in actions)
            and (not isinstance(user, str) or len(user.encode()) <= self.limits.id_bytes)
            and int(parameters.get("top_k", 1)) >= 1
            and (start or not stated)
            and not (forgets and (start + len(items) or candidates or user is None))
        )
        if not allowed:
            return Expected("INVALID_ARG")
        if request.cancelled:
            return Expected("CANCELLED")
        if forgets:
            self.known.pop(user, None)  # type: ignore[arg-type]
            return Expected(None, forgets=True)
        old = self.known.get(user, Known()) if user is not None else Known()
        base = self.window_start(start + len(items))
        if start > base and not old.start <= base <= old.stop:
            return Expected("NOT_FOUND", position=base)
        if start > max(base, old.stop):
            return Expected("NOT_FOUND", position=old.stop)
        if start > base and stated is not None and stated != old.digest_before(start):
            return Expected("NOT_FOUND", position=base)
        events = tuple(zip(items, actions, strict=True))
        if start > base:
            kept = old.events[base - old.start : start - old.start]
            history = Known(base, kept + events, old.digest_before(base))
        else:
            history = Known(base, events[base - start :], plus(stated if start else 0, start, events[: base - start]))
        if user is not None:
            self.known[user] = history
        top_k = int(parameters["top_k"]) if "top_k" in parameters else None
        return Expected(None, history=history, top_k=top_k)

    @staticmethod
    def _readable(request: Request) -> bool:
        for name, dtype in TYPES.items():
            array = request.tensors.get(name)
            if array is None or array.dtype != dtype or array.ndim != 2 or array.shape[0] != 1:
                return False
        if request.tensors["HISTORY_START"].shape[1] != 1:
            return False
        if isinstance(request.user, bytes):
            try:
                request.user.decode()
            except UnicodeDecodeError:
                return False
        try:
            parameters: Any = json.loads(request.parameter_text or "{}")
        except ValueError:
            return False
        return (
            isinstance(parameters, dict)
            and _good_top_k(parameters)
            and type(parameters.get("forget", False)) is bool
            and _good_digest(parameters.get("prefix_digest"))
        )

    def state_digest(self, request: Request) -> None:
        """Add the digest of what is known before the request's start, if anything is."""
        request.parameter_text = ""
        if not self._readable(request):
            return
        known, start = self.known.get(request.user, Known()), int(request.tensors["HISTORY_START"][0, 0])
        before = known.digest_before(start) if known.start <= start <= known.stop else None
        request.parameter_text = json.dumps({"prefix_digest": f"{before or 0:016x}"})


def _good_digest(stated: Any) -> bool:
    return stated is None or (
        isinstance(stated, str) and len(stated) == 16 and all(digit in "0123456789abcdefABCDEF" for digit in stated)
    )


def _good_top_k(parameters: dict[str, Any]) -> bool:
    top_k = parameters.get("top_k", 1)
    if isinstance(top_k, str):
        digits = top_k.removeprefix("-")
        return digits.isascii() and digits.isdigit() and len(digits) <= 18
    return type(top_k) is int
