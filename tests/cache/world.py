"""A world around a `CacheManager`: clients, an engine and copying streams, and what must hold after each step.

Every step is something the contract in `mtserve_backend.cache` allows; one that is impossible at the moment is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import numpy as np
import pytest

from mtserve_backend.cache.history import BYTES_PER_TOKEN, HistoryGap
from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import (
    BYTES_PER_USER,
    Geometry,
    Lease,
    LookUp,
    OffloadTask,
    OnloadTask,
    User,
    UserRecord,
    Visit,
)
from mtserve_backend.models.contract import Window
from tests.cache.shadow import (
    UNKNOWN,
    Agreement,
    Gap,
    Known,
    Memory,
    Names,
    Prefixes,
    Token,
    Transfer,
    expected_comparison,
    known_of,
    tokens_of,
    told_before,
)

T = TypeVar("T")

USERS: tuple[User, ...] = (1, "1", 2)
STRANGER = "stranger"
FILLER: Token = (7, 7)


@dataclass
class Held:
    """A look-up, and the lease it became."""

    look_up: LookUp
    expected: Agreement
    history: tuple[Token, ...]  # as the client sees it, from position 0
    before: list[Token] | None  # what the server was told of the tokens before `expected.base`
    lease: Lease | None = None


@dataclass(frozen=True)
class Request:
    """A history grown by `fresh`, cut by some tokens, perhaps changed at one; sent whole, or from somewhere.

    With `digest` it says by its digest what comes before the tokens sent.
    """

    user: User
    cut: int
    flip: int | None
    fresh: int
    sent: str
    overlap: int
    digest: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of the tiers, in their own units; the quota in chunks, the log bound in users of eight tokens."""

    page_tokens: int
    chunk_pages: int
    device_pages: int
    onload_pages: int
    host_chunks: int
    quota_chunks: int
    window: tuple[int, int]
    log_users: int


class World:
    """Plays engine, copying streams and clients. `which` and `stream` choose among what there is."""

    def __init__(self, sizes: Sizes) -> None:
        chunk_tokens = sizes.page_tokens * sizes.chunk_pages
        self.geometry = Geometry(
            sizes.page_tokens, chunk_tokens, sizes.device_pages, sizes.onload_pages, sizes.host_chunks
        )
        # Clients start anew after so many tokens: a history that never fits teaches little.
        self.long = max(9, sizes.device_pages * sizes.page_tokens * 3 // 4)
        self.window = Window(*sizes.window).start
        self.quota = sizes.quota_chunks * chunk_tokens
        self.max_log_bytes = sizes.log_users * (BYTES_PER_USER + 24 * BYTES_PER_TOKEN)
        self.manager = CacheManager(self.geometry, self.window, self.quota, self.max_log_bytes)
        self.memory = Memory(self.geometry)
        self.prefixes = Prefixes()
        self.random = Random(0)
        self.clients: dict[User, tuple[Token, ...]] = {}
        self.known: dict[User, Known] = {}
        self.before: dict[User, list[Token] | None] = {}  # of those known: what was told of earlier tokens
        self.log_sizes: dict[User, int] = {}
        self.held: list[Held] = []
        self.seen: Counter[str] = Counter()

    # --- requests --------------------------------------------------------------------------------------------------

    def visit(self, request: Request) -> None:
        """The ordinary case, in one go."""
        before = len(self.held)
        self.look_up(request)
        if len(self.held) > before:
            held = self.held[-1]
            self._prepare(held, uncached=False, give_up=True)
            if held.lease is not None:
                self._compute(held, fails=False, written=0)

    def crowd_out(self, quarters: int) -> None:
        """A stranger who takes so many quarters of what can be had, evicting others for it, and leaves at once."""
        spare = self.manager.tiers.primary.free + sum(len(r.pages) for r in self._records() if not r.pins)
        fresh = spare * quarters // 4 * self.geometry.page_tokens
        self.visit(Request(STRANGER, cut=1000, flip=None, fresh=fresh, sent="whole", overlap=0))
        self.visit(Request(STRANGER, cut=1000, flip=None, fresh=0, sent="whole", overlap=0))

    def look_up(self, request: Request) -> None:
        user, flip = request.user, request.flip
        fresh = [(self.random.randrange(3), self.random.randrange(2)) for _ in range(request.fresh)]
        if any(held.look_up.record.user == user for held in self.held):
            return
        old = self.clients.get(user, ())
        kept = list(old[: max(0, len(old) - request.cut)]) if len(old) < self.long else []
        if flip is not None and kept:
            at = max(0, len(kept) - 1 - flip)
            kept[at] = (kept[at][0] + 1, kept[at][1])
        new = kept + fresh
        start = {
            "whole": 0,
            "delta": len(kept),
            "overlap": max(0, len(kept) - request.overlap),
            "gap": len(kept) + 2,
        }[request.sent]
        sent = new[start:]
        base = self.window(start + len(sent))
        known, before = self.known.get(user), self.before.get(user)
        stated = new[:start] if request.digest and start <= len(new) else None
        expected = expected_comparison(known, start, sent, base, before, stated)
        visit = Visit(user, tokens_of(start, sent, stated))
        if isinstance(expected, Gap):
            pins = {id(r): r.pins for _, r in self.manager.users.items()}
            with pytest.raises(HistoryGap) as gap:
                self.manager.look_up(visit)
            assert gap.value.needed_from == expected.needed_from
            assert ("another history" in str(gap.value)) == expected.other
            self.seen["told by a digest"] += expected.other
            assert pins == {id(r): r.pins for _, r in self.manager.users.items()}
            return
        look_up = self.manager.look_up(visit)
        assert look_up.comparison.agreed == expected.agreed
        assert look_up.comparison.base == base
        # What was sent, on top of what was known: a changed token before `start` was never sent, so it never happened;
        # unless a digest speaks for it.
        history = ((old if stated is None else tuple(new)) + (FILLER,) * start)[:start] + tuple(sent)
        told = told_before(known, before, start, sent, base, stated)
        self.held.append(Held(look_up, expected, history, told))

    def make_room(self) -> None:
        """For all who are looked up: everybody gets it, or nobody is evicted."""
        waiting = [held.look_up for held in self.held if held.lease is None]
        evictions = self.manager.counters.device_evictions
        self.manager.make_room(waiting)
        evicted = self.manager.counters.device_evictions - evictions
        self.seen["evicted for a wave"] += evicted
        needed = sum(
            self.geometry.pages(at.comparison.total - at.comparison.base) - len(at.record.pages) for at in waiting
        )
        assert not evicted or self.manager.tiers.primary.free >= needed

    def prepare(self, which: int, uncached: bool, give_up: bool) -> None:
        held = self._pick([h for h in self.held if h.lease is None], which)
        if held is not None:
            self._prepare(held, uncached, give_up)

    def _prepare(self, held: Held, uncached: bool, give_up: bool) -> None:
        record = held.look_up.record
        device, host, busy = record.device_length, record.host_length, self._tasks_of(record)
        others = {id(r): r.device_length for r in self._records() if r is not record}
        unchanged = known_of(record.log)
        agreed = held.expected.agreed - held.expected.base if record.log.start == held.expected.base else 0
        if uncached:
            held.lease = self.manager.prepare_uncached(held.look_up)
            self._note_history(held)
            assert held.lease.pages is None
            assert held.lease.cached == 0
            return
        evictions = self.manager.counters.device_evictions
        lease = self.manager.prepare(held.look_up)
        self.seen["prepared"] += 1
        self.seen["device evictions"] += self.manager.counters.device_evictions - evictions
        if lease is None:
            self.seen["no room"] += 1
            self._check_there_was_no_room(held, others)
            assert known_of(record.log) == unchanged
            if give_up:
                self.manager.forgo(held.look_up)
                self._drop_what_is_done()
                self.held.remove(held)
            return
        held.lease = lease
        self._note_history(held)
        self._check_lease(held)
        usable = min(device, agreed) if device else min(host, agreed)
        if not busy:
            assert lease.cached == usable, "state that could be used was given up"
        else:
            assert lease.cached >= usable // self.geometry.page_tokens * self.geometry.page_tokens or lease.onload
        if lease.onload is not None and lease.onload not in self.memory.transfers:
            self._check_onload_targets(lease.onload)
            self.memory.start(lease.onload)
            self.seen["onloads"] += 1
            self.seen["onloads staged"] += len(lease.onload.staged) > 0
            self.seen["onloads of a part of a page"] += lease.cached % self.geometry.page_tokens > 0

    def forgo(self, which: int) -> None:
        held = self._pick([h for h in self.held if h.lease is None], which)
        if held is not None:
            self.manager.forgo(held.look_up)
            self._drop_what_is_done()
            self.held.remove(held)

    def compute(self, which: int, fails: bool, written: int) -> None:
        """Read what is cached, write the rest, commit; or fail with some of it written, and abort."""
        held = self._pick([h for h in self.held if h.lease is not None], which)
        if held is not None:
            self._compute(held, fails, written)

    def _compute(self, held: Held, fails: bool, written: int) -> None:
        lease = held.lease
        assert lease is not None
        self.held.remove(held)
        if lease.pages is None:
            self._abort(lease) if fails else self._commit(lease)
            return
        if lease.onload is not None and lease.length:
            self.memory.finish_load(lease.onload)
            if self.memory.transfers[lease.onload].failed:
                self.manager.onload_failed(lease.onload)
                self._abort(lease)
                return
        names = self._names(lease.record)
        assert np.array_equal(self.memory.read(lease.pages, 0, lease.cached), names[: lease.cached]), (
            "a lease's pages hold other tokens' keys"
        )
        self._check_writable(lease)
        if fails:
            self.memory.write(lease.pages, lease.cached, np.full(min(written, lease.length - lease.cached), UNKNOWN))
            self._abort(lease)
            return
        self.memory.write(lease.pages, lease.cached, names[lease.cached :])
        self._commit(lease)

    def give_up_a_load(self, which: int) -> None:
        """It is late. Its bytes still move, sooner or later."""
        held = self._pick([h for h in self.held if h.lease and h.lease.onload], which)
        if held is not None and held.lease is not None and held.lease.onload is not None:
            self.held.remove(held)
            self.manager.onload_failed(held.lease.onload)
            self._abort(held.lease)

    # --- transfers -------------------------------------------------------------------------------------------------

    def upkeep(self, moves: int) -> None:
        """What an idle engine does: offloads planned, streams that get on, completions taken in."""
        self.plan_offloads()
        for step in range(moves):
            self.move(step, fails=False)
            self.deliver(step)

    def forget(self, user: User) -> None:
        """As asked for by the user, who has no request under way; transfers may be."""
        if any(held.look_up.record.user == user for held in self.held):
            return
        record = self.manager.users.get(user)
        assert self.manager.forget(user) == (record is not None) == (user in self.known)
        self.known.pop(user, None)
        if record is not None:
            self.seen["forgotten"] += 1
            assert not len(record.log)
            assert self.manager.touched(user) >= any(task.record is record for task in self.manager.tasks)

    def plan_offloads(self, tails: bool = False) -> None:
        others = list(self.manager.tasks)
        for task in self.manager.plan_tail_flushes() if tails else self.manager.plan_offloads():
            assert tails or task.stop % self.geometry.chunk_tokens == 0
            self._check_offload(task, others)
            self.seen["tails"] += task.stop % self.geometry.chunk_tokens > 0
            self.memory.start(task)
            others.append(task)
            self.seen["offloads"] += 1
            self.seen["offloads from the middle of a page"] += task.start % self.geometry.page_tokens > 0

    def move(self, stream: int, fails: bool) -> None:
        """One more piece of work on a stream that has some and need not wait for another."""
        memory, moves = self.memory, []
        if memory.onload:
            moves.append(memory.step_onload)
        if memory.scatter and memory.scatter[0].loaded:
            moves.append(memory.step_scatter)
        if memory.offload:
            moves.append(memory.step_offload)
        step = self._pick(moves, stream)
        if step is not None:
            step(fails)

    def deliver(self, which: int) -> None:
        """A completion, in any order."""
        transfer = self._pick(self._deliverable(), which)
        if transfer is None:
            return
        task = transfer.task
        self.seen["delivered to a leased user"] += task.record in self.manager.leased
        if isinstance(task, OnloadTask):
            self.manager.onload_done(task, transfer.failed)
        else:
            self.manager.offload_done(task, transfer.failed)
        transfer.delivered = True
        self._drop_what_is_done()
        self.seen["transfers failed"] += transfer.failed

    # --- always ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.books_agree()
        self.logs_are_what_was_sent()
        self.quota_is_kept()
        self.memory_holds_what_the_books_say()

    def books_agree(self) -> None:
        self.manager.check()

    def logs_are_what_was_sent(self) -> None:
        assert {r.user: known_of(r.log) for r in self._records()} == self.known

    def quota_is_kept(self) -> None:
        assert 0 <= self.manager.offloading_tokens <= self.quota

    def memory_holds_what_the_books_say(self) -> None:
        for record in self._records():
            names = self._names(record)
            device, host = names[: record.device_length], names[: record.host_length]
            sure = ~self._on_its_way(record, len(device))
            held = self.memory.read(record.pages, 0, len(device))
            assert np.array_equal(held[sure], device[sure]), "a page holds other tokens' keys"
            saved = self.memory.read_host(record.chunks, len(host))
            torn = self._torn_from(record)
            assert np.array_equal(saved[:torn], host[:torn]), "a chunk holds other tokens' keys"

    def end(self) -> None:
        """Let everything end: nothing may stay pinned or taken."""
        for held in self.held:
            if held.lease is None:
                self.manager.forgo(held.look_up)
                self._drop_what_is_done()
            else:
                self._abort(held.lease)
        self.held.clear()
        while self.memory.onload or self.memory.offload or self.memory.scatter:
            self.move(0, False)
        while self.memory.transfers:
            self.deliver(0)
        self.check()
        assert not self.manager.tasks
        assert all(record.pins == 0 for record in self._records())
        tiers = self.manager.tiers
        assert tiers.onload.used == 0
        assert tiers.primary.used == sum(len(r.pages) for r in self._records())
        assert tiers.chunks.used == sum(len(r.chunks) for r in self._records())

    # --- what must hold of what the manager hands out ----------------------------------------------------------------

    def _check_lease(self, held: Held) -> None:
        lease, expected = held.lease, held.expected
        assert lease is not None
        assert lease.pages is not None
        assert len(lease.pages) == self.geometry.pages(lease.length)
        assert len(set(lease.pages.tolist())) == len(lease.pages)
        assert lease.length == len(expected.history)
        assert lease.total_length == expected.base + len(expected.history)
        known = expected.agreed - expected.base
        assert 0 <= lease.cached <= known
        assert lease.found_device + lease.found_host == lease.cached
        assert min(lease.found_device, lease.found_host) == 0
        assert lease.recomputed == known - lease.cached
        assert lease.new == lease.length - known
        fresh = lease.fresh()
        assert fresh.start == expected.base + lease.cached
        assert list(zip(fresh.items.tolist(), fresh.actions.tolist(), strict=True)) == list(
            expected.history[lease.cached :]
        )

    def _check_writable(self, lease: Lease) -> None:
        """Nobody copies from or to the pages that are written, but for the user's own load before they are."""
        assert lease.pages is not None
        written = set(lease.pages[lease.cached // self.geometry.page_tokens :].tolist())
        if lease.cached == lease.length:
            return
        for task in self.manager.tasks:
            touched = set(task.held_pages.tolist())
            if isinstance(task, OffloadTask) and task is lease.record.offload and lease.cached >= task.stop:
                continue  # it copies slots before those that are written
            if task is lease.onload:
                touched = {*task.staged.tolist(), *task.primary.tolist()}
            assert not written & touched, "a page to be written is held by a transfer"
        for record in self._records():
            assert record is lease.record or not written & set(record.pages.tolist())

    def _check_onload_targets(self, task: OnloadTask) -> None:
        targets = set(np.concatenate([*(run.pages for run in task.runs), task.primary]).tolist())
        assert targets == set(task.held_pages.tolist())
        for other in self.manager.tasks - {task}:
            assert not targets & set(other.held_pages.tolist())
        for record in self._records():
            assert record is task.record or not targets & set(record.pages.tolist())
        assert len(task.staged) == len(task.primary)
        assert all(page >= self.geometry.device_pages for page in task.staged)
        assert all(page < self.geometry.device_pages for page in task.primary)

    def _check_offload(self, task: OffloadTask, others: Sequence[OnloadTask | OffloadTask]) -> None:
        """From written pages; into chunks that nobody reads, writes or owns."""
        assert task.start < task.stop <= task.record.device_length
        sources = np.concatenate([run.pages for run in task.runs])
        assert np.array_equal(sources, task.held_pages)
        first = task.start // self.geometry.page_tokens
        assert np.array_equal(sources, task.record.pages[first : self.geometry.pages(task.stop)])
        targets = {run.chunk for run in task.runs}
        assert targets <= set(task.held_chunks.tolist())
        for other in others:
            assert not targets & set(other.held_chunks.tolist()), "an offload writes a chunk that another one uses"
            assert other.record is not task.record or isinstance(other, OffloadTask) or other is not other.record.onload
        for record in self._records():
            assert record is task.record or not targets & set(record.chunks.tolist())

    def _check_there_was_no_room(self, held: Held, others: dict[int, int]) -> None:
        record, tiers = held.look_up.record, self.manager.tiers
        assert others == {id(r): r.device_length for r in self._records() if r is not record}, "evicted for nothing"
        missing = self.geometry.pages(len(held.expected.history)) - len(record.pages)
        spare = sum(len(r.pages) for r in self._records() if not r.pins)
        assert missing > tiers.primary.free + spare

    def _commit(self, lease: Lease) -> None:
        self.manager.commit(lease)
        self._drop_what_is_done()
        self._forget_the_forgotten()

    def _abort(self, lease: Lease) -> None:
        self.manager.abort(lease)
        self._drop_what_is_done()
        self._forget_the_forgotten()

    def _forget_the_forgotten(self) -> None:
        """Users whose logs do not fit are gone: the longest unseen, and no more than needed."""
        users = {r.user for r in self._records()}
        gone = self.known.keys() - users
        size = sum(BYTES_PER_USER + self.log_sizes[user] for user in self.known)
        for user in [u for u in self.known if u in gone]:
            assert size > self.max_log_bytes
            del self.known[user]
            size -= BYTES_PER_USER + self.log_sizes[user]
        assert size <= self.max_log_bytes or all(r.pins for r in self._records())

    # --- small change ------------------------------------------------------------------------------------------------

    def _note_history(self, held: Held) -> None:
        """From here on this is what the user did. `known` is kept in the order of the last visits."""
        user = held.look_up.record.user
        self.clients[user] = held.history
        self.known.pop(user, None)
        self.known[user] = Known(held.expected.base, held.expected.history)
        self.before[user] = held.before
        log = held.look_up.record.log
        assert len(log) * BYTES_PER_TOKEN <= log.size_bytes <= (3 * len(log) + 100) * BYTES_PER_TOKEN
        self.log_sizes[user] = log.size_bytes

    def _drop_what_is_done(self) -> None:
        """The manager may keep a completion until the user's lease ends."""
        for task in [t for t, transfer in self.memory.transfers.items() if transfer.delivered]:
            if task not in self.manager.tasks:
                del self.memory.transfers[task]
            else:
                assert task.record in self.manager.leased

    def _deliverable(self) -> list[Transfer]:
        return [transfer for transfer in self.memory.transfers.values() if transfer.over and not transfer.delivered]

    def _on_its_way(self, record: UserRecord, length: int) -> np.ndarray:
        """Positions whose pages are still being loaded, or were loaded in vain, as the engine is about to learn."""
        mask = np.zeros(length, dtype=bool)
        transfer = self.memory.transfers.get(record.onload) if record.onload else None
        if transfer is None or (transfer.loaded and not transfer.failed):
            return mask
        assert isinstance(transfer.task, OnloadTask)
        targets = np.concatenate([run.pages for run in transfer.task.runs])
        pages = np.isin(record.pages, targets)
        return np.repeat(pages, self.geometry.page_tokens)[:length]

    def _torn_from(self, record: UserRecord) -> int:
        """From where the chunks are worth nothing because an offload failed, as the manager is about to learn."""
        transfer = self.memory.transfers.get(record.offload) if record.offload else None
        if transfer is None or not transfer.failed:
            return record.host_length
        assert isinstance(transfer.task, OffloadTask)
        return transfer.task.start // self.geometry.page_tokens * self.geometry.page_tokens

    def _names(self, record: UserRecord) -> Names:
        known = known_of(record.log)
        return self.prefixes.of(record.user, known.start, known.tokens)

    def _records(self) -> list[UserRecord]:
        return [record for _, record in self.manager.users.items()]

    def _tasks_of(self, record: UserRecord) -> list[OnloadTask | OffloadTask]:
        return [task for task in self.manager.tasks if task.record is record]

    @staticmethod
    def _pick(choices: Sequence[T], which: int) -> T | None:
        return choices[which % len(choices)] if choices else None
