"""What the server knows a user did: the token log, and how a request's history is compared with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtserve_backend.cache.digest import MASK, digest

Items = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]

BYTES_PER_TOKEN = 12


class HistoryGap(LookupError):
    """What comes before the request's tokens is not known here. `needed_from` is the position to send from."""

    def __init__(self, start: int, needed_from: int, other: bool = False) -> None:
        """`other`: something is known, but it is not what the request's digest says."""
        known = "knows another history before it" if other else "does not know all of what comes before"
        super().__init__(
            f"the history sent starts at position {start}, and this server {known}; "
            f"tokens are needed from position {needed_from}"
        )
        self.needed_from = needed_from


@dataclass(frozen=True)
class Tokens:
    """Consecutive history tokens, the first at absolute position `start`: items int64 `[n]`, actions int32 `[n]`.

    `prefix` is the digest of all before them, if whoever sent them stated it.
    """

    start: int
    items: Items
    actions: Actions
    prefix: int | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.items)

    def since(self, position: int) -> Tokens:
        """The tokens from an absolute position on."""
        skip = position - self.start
        return Tokens(position, self.items[skip:], self.actions[skip:])


class TokenLog:
    """The tokens of one user from absolute position `start` (the window's) to `stop`, growing in place.

    Kept besides is the digest of all tokens before one position, the mark: where the last delta began, so that the next
    one costs a sum over a few tokens. It is None where what comes before `start` was never stated.
    """

    __slots__ = ("_actions", "_digest", "_items", "_mark", "_size", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self._mark = start
        self._digest: int | None = None if start else 0
        self._size = 0
        self._items: Items = np.empty(0, dtype=np.int64)
        self._actions: Actions = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return self._size

    @property
    def stop(self) -> int:
        return self.start + self._size

    @property
    def size_bytes(self) -> int:
        """What its tokens occupy, room to grow included."""
        return len(self._items) * BYTES_PER_TOKEN

    def tokens(self, start: int, stop: int) -> Tokens:
        """A view, valid until the log changes."""
        span = slice(start - self.start, stop - self.start)
        return Tokens(start, self._items[span], self._actions[span])

    def agreement(self, tokens: Tokens, start: int) -> int:
        """First absolute position at or after `start` at which log and tokens differ or one of them ends."""
        stop = min(tokens.stop, self.stop)
        if stop <= start:
            return start
        mine, theirs = self.tokens(start, stop), tokens.since(start)
        count = stop - start
        differs = (mine.items != theirs.items[:count]) | (mine.actions != theirs.actions[:count])
        first = int(differs.argmax())
        return start + first if differs[first] else stop

    def digest_before(self, position: int) -> int | None:
        """The digest of all tokens before a position in `start .. stop`; None: it is not known."""
        if self._digest is not None:
            low, high = sorted((self._mark, position))
            between = self.tokens(low, high)
            step = digest(low, between.items, between.actions)
            self._digest = (self._digest + (step if position > self._mark else -step)) & MASK
        self._mark = position
        return self._digest

    def wipe(self) -> None:
        """Forget every token, and overwrite where they were."""
        self._items.fill(0)
        self._actions.fill(0)
        self._items, self._actions = self._items[:0].copy(), self._actions[:0].copy()
        self._size = 0
        self._mark, self._digest = self.start, None if self.start else 0

    def rewrite(self, base: int, agreed: int, tokens: Tokens) -> None:
        """Become: own tokens from `base` to `agreed`, then `tokens` from there on."""
        self._move_mark(base, agreed, tokens)
        if base != self.start:
            kept = self.tokens(base, agreed)
            self._items, self._actions = kept.items.copy(), kept.actions.copy()
            self.start = base
        fresh = tokens.since(agreed)
        size, keep = tokens.stop - base, agreed - base
        capacity = size + max(16, size // 8)
        if size > len(self._items) or len(self._items) > 2 * capacity:
            # Growing by an eighth keeps appends O(1) amortised and the log near its 12 bytes a token.
            items, actions = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int32)
            items[:keep], actions[:keep] = self._items[:keep], self._actions[:keep]
            self._items, self._actions = items, actions
        self._items[keep:size], self._actions[keep:size] = fresh.items, fresh.actions
        self._size = size

    def _move_mark(self, base: int, agreed: int, tokens: Tokens) -> None:
        """To where its digest will still be right after a rewrite."""
        if tokens.start <= base and (base or self.start):
            # The request says what comes before, and it need not be what was here.
            dropped = slice(0, base - tokens.start)
            before = tokens.prefix if tokens.start else 0
            self._mark, self._digest = base, None
            if before is not None:
                self._digest = (before + digest(tokens.start, tokens.items[dropped], tokens.actions[dropped])) & MASK
        elif not base <= self._mark <= agreed:
            self.digest_before(agreed)


@dataclass(frozen=True)
class Comparison:
    """A request's history against the log, in absolute positions: encode `base .. total`; known up to `agreed`."""

    base: int
    agreed: int
    total: int


def compare(log: TokenLog | None, tokens: Tokens, base: int) -> Comparison:
    """Raises `HistoryGap` if tokens from `base` on are neither in the request nor in the log.

    Tokens before `tokens.start` are taken from the log, if they are those that the request's digest stands for (or it
    has none); those sent are compared with it, never trusted.
    """
    total = tokens.stop
    if log is None or log.start > base or log.stop < base:
        if tokens.start > base:
            raise HistoryGap(tokens.start, base)
        return Comparison(base, base, total)
    if tokens.start > log.stop:
        raise HistoryGap(tokens.start, log.stop)
    if tokens.prefix is not None and tokens.start > base and log.digest_before(tokens.start) != tokens.prefix:
        raise HistoryGap(tokens.start, base, other=True)
    return Comparison(base, log.agreement(tokens, max(tokens.start, base)), total)
