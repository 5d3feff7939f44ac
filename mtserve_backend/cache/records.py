"""What the manager keeps about a user, and what it hands out: leases to the engine, tasks to the transfer workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from mtserve_backend.cache.history import Comparison, TokenLog, Tokens
from mtserve_backend.cache.slots import NO_SLOTS, Slots

# Why known tokens were computed again; docs/metrics.md says what each means.
RecomputeReason = Literal["evicted", "rewritten", "window", "uncached", "failed"]
RECOMPUTE_REASONS: tuple[RecomputeReason, ...] = get_args(RecomputeReason)

User = int | str | None  # None: nobody; nothing is kept

# A record, its entries in the maps and its arrays' headers, measured with tracemalloc over 100,000 users.
BYTES_PER_USER = 1200


@dataclass(frozen=True)
class Geometry:
    """Sizes of the tiers, in pages and chunks. Page numbers from `device_pages` on are the onload buffer's."""

    page_tokens: int
    chunk_tokens: int
    device_pages: int
    onload_pages: int
    host_chunks: int

    @property
    def chunk_pages(self) -> int:
        return self.chunk_tokens // self.page_tokens

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def chunks(self, tokens: int) -> int:
        return -(-tokens // self.chunk_tokens)


@dataclass(slots=True, eq=False)
class UserRecord:
    """Positions here are relative to the log's start. Keys exist for 0 .. device_length and 0 .. host_length.

    `pages[i]` is where page i can be read now: an onload-buffer page until its scatter is done, a primary page after.
    """

    user: User
    log: TokenLog
    pages: Slots = field(default_factory=lambda: NO_SLOTS)
    device_length: int = 0
    chunks: Slots = field(default_factory=lambda: NO_SLOTS)
    host_length: int = 0
    pins: int = 0
    onload: OnloadTask | None = None
    offload: OffloadTask | None = None


class PageRun(NamedTuple):
    """`count` neighbouring pages of a chunk, from its page `first`, and the `count` device pages they belong in."""

    chunk: int
    first: int
    pages: Slots


@dataclass(eq=False)
class OnloadTask:
    """Load pages 0 ... of `held_chunks` into `pages`; then copy pages `staged`, the first of them, to `primary`."""

    record: UserRecord
    tokens: int
    pages: Slots
    chunk_pages: int
    staged: Slots
    primary: Slots
    held_pages: Slots
    held_chunks: Slots

    @cached_property
    def runs(self) -> list[PageRun]:
        """What is copied. Worked out by who copies: the engine's thread has a request to answer."""
        return runs_of(self.held_chunks, self.pages, 0, self.chunk_pages)


@dataclass(eq=False)
class OffloadTask:
    """Copy `runs`, `buffer_tokens` in whole pages, to the host; then positions `start .. stop` are persisted.

    `new_chunks` become the user's when the copy is done.
    """

    record: UserRecord
    start: int
    stop: int
    runs: list[PageRun]
    buffer_tokens: int
    new_chunks: Slots
    held_pages: Slots
    held_chunks: Slots


@dataclass(frozen=True)
class Visit:
    """One request as the cache sees it."""

    user: User
    tokens: Tokens


@dataclass(frozen=True, eq=False)
class LookUp:
    """A compared history. The record is leased, and so pinned, until the lease's `commit` or `abort`, or `forgo`."""

    visit: Visit
    record: UserRecord
    comparison: Comparison


@dataclass
class Lease:
    """What the engine may rely on until `commit` or `abort`. Lengths are of the window, in tokens.

    `pages` maps positions 0 .. `length`; keys are there for 0 .. `cached` (once `onload`, if any, has brought them),
    and are the engine's to write for `cached .. length`. None: this request's keys are not kept, and `cached` is 0.
    """

    record: UserRecord
    pages: Slots | None
    length: int
    cached: int
    found_device: int
    found_host: int
    recomputed: int
    new: int
    total_length: int
    onload: OnloadTask | None = None
    reason: RecomputeReason = "evicted"

    def fresh(self) -> Tokens:
        """The tokens whose keys are to be computed."""
        log = self.record.log
        return log.tokens(log.start + self.cached, log.start + self.length)

    def last(self) -> Tokens:
        """The last history token; only for a history that is not empty."""
        log = self.record.log
        return log.tokens(log.stop - 1, log.stop)


@dataclass
class Counters:
    """Exact totals since start-up, in tokens unless the name says otherwise.

    Every history token of a request was found on the device, found on the host, recomputed or new. Every token's state
    that a tier gained was since evicted, or discarded (its history was cut or forgotten, or its load failed), or is
    there. Pages are those of whole transfers: what was moved, wanted in the end or not.
    """

    requests: int = 0
    uncached_requests: int = 0
    found_device: int = 0
    found_host: int = 0
    recomputed: int = 0
    new: int = 0
    device_gained: int = 0
    device_evicted: int = 0
    device_evicted_unsaved: int = 0
    device_discarded: int = 0
    host_gained: int = 0
    host_evicted: int = 0
    host_discarded: int = 0
    onloaded: int = 0
    pages_onloaded: int = 0
    pages_scattered: int = 0
    pages_offloaded: int = 0
    onload_failures: int = 0
    offload_failures: int = 0
    offloads_refused: int = 0
    device_evictions: int = 0
    host_evictions: int = 0
    logs_dropped: int = 0
    users_forgotten: int = 0
    recomputed_because: dict[RecomputeReason, int] = field(default_factory=lambda: dict.fromkeys(RECOMPUTE_REASONS, 0))

    @property
    def on_device(self) -> int:
        """Tokens whose state is on the device now."""
        return self.device_gained - self.device_evicted - self.device_discarded

    @property
    def on_host(self) -> int:
        """Tokens whose state is on the host now."""
        return self.host_gained - self.host_evicted - self.host_discarded

    def hit_ratio(self) -> float:
        """History tokens taken from the cache over all history tokens, new ones included."""
        total = self.found_device + self.found_host + self.recomputed + self.new
        return (self.found_device + self.found_host) / total if total else 0.0


def runs_of(chunks: Slots, pages: Slots, first_page: int, chunk_pages: int) -> list[PageRun]:
    """Pages `first_page ...` of a history, cut at chunk boundaries. `chunks[i]` holds pages `i * chunk_pages ...`."""
    first_chunk = first_page // chunk_pages
    offset = first_page - first_chunk * chunk_pages
    runs: list[PageRun] = []
    start = 0
    for chunk in chunks[first_chunk:].tolist():
        stop = start + chunk_pages - offset
        if start < len(pages):
            runs.append(PageRun(chunk, offset, pages[start:stop]))
        start, offset = stop, 0
    if start < len(pages):
        raise IndexError(f"{len(pages)} pages from page {first_page} on do not fit into {len(chunks)} chunks")
    return runs


def concatenate(*slots: Slots) -> Slots:
    return np.concatenate(slots) if slots else NO_SLOTS
