"""A symbolic machine beside a `CacheManager`: memory that holds token histories instead of numbers, and slow streams.

A slot of a page or chunk holds the *name* of the prefix whose keys would be there: (user, window start, tokens up to
and including this one). A key depends on all of that, so a slot with another name is a wrong score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mtserve_backend.cache.digest import digest
from mtserve_backend.cache.history import TokenLog, Tokens
from mtserve_backend.cache.records import Geometry, OffloadTask, OnloadTask, PageRun, User

Token = tuple[int, int]
Names = npt.NDArray[np.int64]

UNKNOWN = -1


class Prefixes:
    """Names of prefixes: equal exactly when user, window and every token are."""

    def __init__(self) -> None:
        self._names: dict[object, int] = {}

    def of(self, user: User, base: int, tokens: Sequence[Token]) -> Names:
        """Names of the prefixes of 1, 2, ... tokens."""
        names = []
        name = self._name((str(type(user)), user, base))
        for token in tokens:
            name = self._name((name, token))
            names.append(name)
        return np.array(names, dtype=np.int64)

    def _name(self, key: object) -> int:
        return self._names.setdefault(key, len(self._names))


@dataclass(eq=False)
class Transfer:
    """A task on its way. `failed` is set when a part of it fails; `over` once none of its bytes moves any more."""

    task: OnloadTask | OffloadTask
    loaded: bool = False
    failed: bool = False
    over: bool = False
    delivered: bool = False


@dataclass
class Memory:
    """Both tiers, and three streams of copies that run in order, each when it is told to."""

    geometry: Geometry
    transfers: dict[OnloadTask | OffloadTask, Transfer] = field(default_factory=dict)
    onload: list[Transfer] = field(default_factory=list)
    scatter: list[Transfer] = field(default_factory=list)
    offload: list[Transfer] = field(default_factory=list)

    def __post_init__(self) -> None:
        g = self.geometry
        self.pages: Names = np.full((g.device_pages + g.onload_pages, g.page_tokens), UNKNOWN, dtype=np.int64)
        self.chunks: Names = np.full((g.host_chunks, g.chunk_pages, g.page_tokens), UNKNOWN, dtype=np.int64)

    def start(self, task: OnloadTask | OffloadTask) -> None:
        transfer = self.transfers[task] = Transfer(task)
        if isinstance(task, OnloadTask):
            self.onload.append(transfer)
            self.scatter.append(transfer)
        else:
            self.offload.append(transfer)

    def step_onload(self, fails: bool) -> None:
        transfer = self.onload.pop(0)
        assert isinstance(transfer.task, OnloadTask)
        for run in transfer.task.runs:
            self.pages[run.pages] = UNKNOWN if fails else self._chunk_pages(run)
        transfer.loaded, transfer.failed = True, fails

    def step_scatter(self, fails: bool) -> None:
        """The oldest scatter, which must be loaded."""
        transfer = self.scatter.pop(0)
        assert transfer.loaded
        task = transfer.task
        assert isinstance(task, OnloadTask)
        if not transfer.failed:
            self.pages[task.primary] = UNKNOWN if fails else self.pages[task.staged]
            transfer.failed = fails and len(task.staged) > 0
        transfer.over = True

    def step_offload(self, fails: bool) -> None:
        transfer = self.offload.pop(0)
        assert isinstance(transfer.task, OffloadTask)
        for run in transfer.task.runs:
            self._chunk_pages(run)[:] = UNKNOWN if fails else self.pages[run.pages]
        transfer.failed, transfer.over = fails, True

    def finish_load(self, task: OnloadTask) -> None:
        """Wait for it, as attention does."""
        while not self.transfers[task].loaded:
            self.step_onload(fails=False)

    def read(self, pages: Names, start: int, stop: int) -> Names:
        """Device slots of positions `start .. stop` of a history on these pages."""
        at = np.arange(start, stop)
        return self.pages[pages[at // self.geometry.page_tokens], at % self.geometry.page_tokens]

    def write(self, pages: Names, start: int, names: Names) -> None:
        at = np.arange(start, start + len(names))
        self.pages[pages[at // self.geometry.page_tokens], at % self.geometry.page_tokens] = names

    def read_host(self, chunks: Names, length: int) -> Names:
        return self.chunks[chunks].reshape(-1)[:length]

    def _chunk_pages(self, run: PageRun) -> Names:
        return self.chunks[run.chunk, run.first : run.first + len(run.pages)]


@dataclass(frozen=True)
class Known:
    """What the server knows of a user: tokens at positions `start ...`."""

    start: int
    tokens: tuple[Token, ...]

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Gap:
    """`other`: what comes before is known, and is not what the request's digest stands for."""

    needed_from: int
    other: bool = False


@dataclass(frozen=True)
class Agreement:
    """The protocol's answer: the history to encode is `history`, at `base ...`; it is the known one up to `agreed`."""

    base: int
    agreed: int
    history: tuple[Token, ...]


def expected_comparison(
    known: Known | None,
    start: int,
    sent: Sequence[Token],
    base: int,
    before: Sequence[Token] | None = None,
    stated: Sequence[Token] | None = None,
) -> Gap | Agreement:
    """docs/protocol.md, position by position: sent tokens count, known ones fill in before them, others are missing.

    `before` is what the server was told of the tokens before `known.start`, `stated` what the request's digest is of.
    """
    mine = {} if known is None else {known.start + i: token for i, token in enumerate(known.tokens)}
    theirs = {start + i: token for i, token in enumerate(sent)}
    total = start + len(sent)
    first_unknown = base
    while first_unknown in mine:
        first_unknown += 1
    if start > first_unknown:
        return Gap(first_unknown)
    if known is not None and stated is not None and start > base:
        prefix = None if before is None else [*before, *known.tokens[: start - known.start]]
        if prefix != list(stated):
            return Gap(base, other=True)
    history = tuple(theirs[p] if p in theirs else mine[p] for p in range(base, total))
    agreed = base
    while agreed < total and mine.get(agreed) == history[agreed - base]:
        agreed += 1
    return Agreement(base, agreed, history)


def told_before(
    known: Known | None,
    before: Sequence[Token] | None,
    start: int,
    sent: Sequence[Token],
    base: int,
    stated: Sequence[Token] | None,
) -> list[Token] | None:
    """What the server was told of the tokens before `base`, once it has accepted the request; None: not all of them."""
    if start <= base:
        first = [] if start == 0 else stated
        return None if first is None else [*first, *sent[: base - start]]
    assert known is not None
    return None if before is None else [*before, *known.tokens[: base - known.start]]


def tokens_of(start: int, sent: Sequence[Token], stated: Sequence[Token] | None = None) -> Tokens:
    """With the digest of `stated`, the tokens before `start`."""
    items = np.array([item for item, _ in sent], dtype=np.int64)
    actions = np.array([action for _, action in sent], dtype=np.int32)
    if stated is None:
        return Tokens(start, items, actions)
    prefix = tokens_of(0, stated)
    return Tokens(start, items, actions, digest(0, prefix.items, prefix.actions))


def known_of(log: TokenLog) -> Known:
    tokens = log.tokens(log.start, log.stop)
    return Known(log.start, tuple(zip(tokens.items.tolist(), tokens.actions.tolist(), strict=True)))
