"""The cache manager: what of a user's state is usable for a request, and what moves next.

The contract (who calls what, in which order) is stated in this package's docstring. Sources: MTServe sections 4.1-4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mtserve_backend.cache.audit import audit
from mtserve_backend.cache.history import TokenLog, compare
from mtserve_backend.cache.lru import LRU
from mtserve_backend.cache.records import (
    BYTES_PER_USER,
    Counters,
    Geometry,
    Lease,
    LookUp,
    OffloadTask,
    OnloadTask,
    RecomputeReason,
    User,
    UserRecord,
    Visit,
    concatenate,
)
from mtserve_backend.cache.slots import Slots
from mtserve_backend.cache.tasks import offload_task, onload_task
from mtserve_backend.cache.tiers import Tiers

# Tails are flushed so that a quarter of the device pool is free or can be freed without loss, looking at most at so
# many of the coldest users at a time.
COLD_SHARE = 4
COLD_USERS = 256


class PinError(RuntimeError):
    """A user was leased twice at a time, or given back more often than taken: a bug, never clamped."""


class CacheManager:
    """Metadata of all users. One thread only; every operation on one user is O(1) in the number of users.

    `geometry.host_chunks` = 0 makes a device-only cache; with `device_pages` = 0 too, only token logs are kept.
    """

    def __init__(
        self,
        geometry: Geometry,
        window_start: Callable[[int], int],
        offload_quota_tokens: int,
        max_log_bytes: int,
        note_freed: bool = False,
    ) -> None:
        self.geometry = geometry
        self.counters = Counters()
        self.tiers = Tiers(geometry, self.counters, note_freed)
        self.users: LRU[User, UserRecord] = LRU()
        self.tasks: set[OnloadTask | OffloadTask] = set()
        self.leased: set[UserRecord] = set()
        # Of each user whose lease is out: the loads that have ended since.
        self._ended_loads: dict[UserRecord, list[tuple[OnloadTask, bool]]] = {}
        self.log_bytes = 0
        self.offloading_tokens = 0
        self._window_start = window_start
        self._quota = offload_quota_tokens
        self._max_log_bytes = max_log_bytes

    # --- a request ---------------------------------------------------------------------------------------------------

    def look_up(self, visit: Visit) -> LookUp:
        """Compare the history with what is known and pin the user. Raises `HistoryGap`, pinning nothing.

        A visit without a user (a server's warm-up) is compared with nothing and leaves no trace. A user has one
        look-up or lease at a time (`PinError`).
        """
        record = None if visit.user is None else self.users.get(visit.user)
        base = self._window_start(visit.tokens.stop)
        comparison = compare(record.log if record else None, visit.tokens, base)
        record = record or UserRecord(visit.user, TokenLog(base))
        if record in self.leased:
            raise PinError("a user was looked up while an earlier request of theirs is under way")
        self.leased.add(record)
        record.pins += 1
        return LookUp(visit, record, comparison)

    def forgo(self, look_up: LookUp) -> None:
        """The request will not be run now: undo the look-up."""
        self._check_leased(look_up.record)
        self._end_lease(look_up.record)

    def make_room(self, look_ups: Iterable[LookUp]) -> None:
        """Evict at once for all who will be prepared next, if there is room for all; else `prepare` sees to each."""
        self.tiers.make_room(sum(self._missing(look_up) for look_up in look_ups))

    def prepare(self, look_up: LookUp) -> Lease | None:
        """Cut what differs, allocate what is missing. None if pages are short: nothing was taken, nobody evicted."""
        record, tiers = look_up.record, self.tiers
        self._cut_to_agreement(look_up)
        resident = record.device_length
        cached = resident or record.host_length
        missing = self._missing(look_up)
        if not tiers.make_room(missing):
            return None
        fresh = tiers.primary.allocate(missing)
        if cached and not resident:
            record.onload = onload_task(tiers, record, fresh)
            self._register(record.onload)
        else:
            record.pages = concatenate(record.pages, fresh)
        tiers.gain_device(record, cached)
        if len(record.pages):
            tiers.on_device.touch(record.user, record)
        if len(record.chunks):
            tiers.on_host.touch(record.user, record)
        return self._lease(look_up, record.pages.copy(), cached, found_device=resident)

    def prepare_uncached(self, look_up: LookUp) -> Lease:
        """A lease for a request whose keys will not be kept. The user's state, as far as it agrees, stays."""
        self._cut_to_agreement(look_up)
        return self._lease(look_up, None, cached=0, found_device=0)

    def commit(self, lease: Lease) -> None:
        """Keys of 0 .. `lease.length` are in the leased pages."""
        record, counters = lease.record, self.counters
        self._check_leased(record)
        if lease.pages is not None:
            self.tiers.gain_device(record, lease.length)
            self.tiers.note_unsaved(record)
        else:
            counters.uncached_requests += 1
        counters.requests += 1
        counters.found_device += lease.found_device
        counters.found_host += lease.found_host
        counters.recomputed += lease.recomputed
        counters.recomputed_because[lease.reason] += lease.recomputed
        counters.new += lease.new
        self._end_lease(record)
        self._bound_logs()

    def abort(self, lease: Lease) -> None:
        """The engine wrote nothing that may be kept; what was cached before still is."""
        self._check_leased(lease.record)
        if lease.pages is not None:
            self.tiers.trim_pages(lease.record)
        self._end_lease(lease.record)
        self._bound_logs()

    def forget(self, user: User) -> bool:
        """Remove all that is known of a user; False if nothing is. Slots under a transfer stay held until its end."""
        record = self.users.get(user)
        if record is None:
            return False
        self._forget(record)
        self.counters.users_forgotten += 1
        return True

    def touched(self, user: User) -> bool:
        """Whether a transfer still reads or writes what is, or was, this user's."""
        return any(task.record.user == user for task in self.tasks)

    # --- transfers ---------------------------------------------------------------------------------------------------

    def plan_offloads(self) -> list[OffloadTask]:
        """Whole chunks that are on the device only, longest waiting first, as far as quota and host pool reach."""
        planned: list[OffloadTask] = []
        for _, record in list(self.tiers.unsaved.items()):
            if record.pins:
                continue  # in use, or a transfer still holds what this one would copy
            task = self._start_offload(record, self._whole_chunks(record.device_length))
            if task is None:
                self.counters.offloads_refused += 1
                continue
            planned.append(task)
        return planned

    def plan_tail_flushes(self) -> list[OffloadTask]:
        """What the next users to be evicted have on the device only: so that their eviction loses nothing.

        The paper loses such tails. Flushed are the coldest users, as many as a quarter of the pool needs.
        """
        planned: list[OffloadTask] = []
        if not self.geometry.host_chunks:
            return planned
        reclaimable = self.tiers.primary.free
        for count, (_, record) in enumerate(self.tiers.on_device.items()):
            if reclaimable * COLD_SHARE >= self.geometry.device_pages or count == COLD_USERS:
                break
            reclaimable += len(record.pages)
            if record.pins or record.device_length <= record.host_length:
                continue
            task = self._start_offload(record, record.device_length)
            if task is None:
                break
            planned.append(task)
        return planned

    def onload_failed(self, task: OnloadTask) -> None:
        """The load cannot be relied on: forget the state it was for, on both tiers. Its slots stay held until done."""
        record = task.record
        if record.onload is task:
            self.counters.onload_failures += 1
            record.onload = None
            self.tiers.drop_device(record)
            self.tiers.drop_host(record)

    def onload_done(self, task: OnloadTask, failed: bool) -> None:
        """No byte of the task moves any more. While the user's lease is out its pages stay as they are."""
        if task.record in self._ended_loads:
            self._ended_loads[task.record].append((task, failed))
            return
        if failed:
            self.onload_failed(task)
        else:
            self.counters.pages_onloaded += len(task.pages)
            self.counters.pages_scattered += len(task.staged)
        record = task.record
        if record.onload is task:
            record.onload = None
            self.counters.onloaded += task.tokens
            self.tiers.swap_scattered(record, task.staged, task.primary)
            self.tiers.note_unsaved(record)
        self._finish(task)

    def offload_done(self, task: OffloadTask, failed: bool) -> None:
        """No byte of the task moves any more. The chunks count only if their history was not cut meanwhile."""
        record = task.record
        self.offloading_tokens -= task.buffer_tokens
        if failed:
            self.counters.offload_failures += 1
        else:
            self.counters.pages_offloaded += len(task.held_pages)
        if record.offload is task:
            if failed:
                self.tiers.give_up_offload(record)
            else:
                record.offload = None
                self.tiers.chunks.hold(task.new_chunks)
                record.chunks = concatenate(record.chunks, task.new_chunks)
                self.tiers.gain_host(record, task.stop)
                self.tiers.on_host.touch(record.user, record)
            self.tiers.note_unsaved(record)
        self._finish(task)

    def check(self) -> None:
        """Derive every count and list from the users and tasks, and compare. Raises `AuditError` or `SlotError`."""
        audit(self)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _missing(self, look_up: LookUp) -> int:
        """Pages that the whole history needs beyond those that the user has."""
        comparison = look_up.comparison
        return self.geometry.pages(comparison.total - comparison.base) - len(look_up.record.pages)

    def _cut_to_agreement(self, look_up: LookUp) -> None:
        record, comparison = look_up.record, look_up.comparison
        same_window = record.log.start == comparison.base
        self.tiers.cut(record, comparison.agreed - comparison.base if same_window else 0)

    def _lease(self, look_up: LookUp, pages: Slots | None, cached: int, found_device: int) -> Lease:
        record, comparison = look_up.record, look_up.comparison
        reason = self._reason(look_up, pages, cached)
        before = record.log.size_bytes
        record.log.rewrite(comparison.base, comparison.agreed, look_up.visit.tokens)
        if record.user is not None:
            if record.user not in self.users:
                self.log_bytes += BYTES_PER_USER
            self.users.touch(record.user, record)
            self.log_bytes += record.log.size_bytes - before
        self._ended_loads[record] = []
        length = comparison.total - comparison.base
        known = comparison.agreed - comparison.base
        return Lease(
            record=record,
            pages=pages,
            length=length,
            cached=cached,
            found_device=found_device,
            found_host=cached - found_device,
            recomputed=known - cached,
            new=length - known,
            total_length=comparison.total,
            onload=None if pages is None else record.onload,
            reason=reason,
        )

    @staticmethod
    def _reason(look_up: LookUp, pages: Slots | None, cached: int) -> RecomputeReason:
        """Why known tokens are to be computed again, if any are; asked before the log is rewritten."""
        log, comparison = look_up.record.log, look_up.comparison
        if pages is None:
            return "uncached"
        if log.start != comparison.base:
            return "window"
        return "rewritten" if cached and comparison.agreed < log.stop else "evicted"

    def _start_offload(self, record: UserRecord, stop: int) -> OffloadTask | None:
        """For positions up to `stop`, or for fewer chunks if there is no room for more; None if for none."""
        geometry, start = self.geometry, record.host_length
        first_chunk = start // geometry.chunk_tokens
        stop = self._within_quota(start, stop)
        while stop > start and not self._host_room(record, stop):
            # What is left over is planned for again when this task is done.
            stop = (first_chunk + (geometry.chunks(stop) - first_chunk) // 2) * geometry.chunk_tokens
        if stop <= start:
            return None
        record.offload = task = offload_task(self.tiers, record, stop)
        self.offloading_tokens += task.buffer_tokens
        self._register(task)
        return task

    def _within_quota(self, start: int, stop: int) -> int:
        """`stop`, or the last whole chunk before it that the quota reaches to."""
        page = self.geometry.page_tokens
        reach = start // page * page + self._quota - self.offloading_tokens
        return stop if self.geometry.pages(stop) * page <= reach else self._whole_chunks(max(0, reach))

    def _host_room(self, record: UserRecord, stop: int) -> bool:
        return self.tiers.make_host_room(self.geometry.chunks(stop) - len(record.chunks))

    def _whole_chunks(self, length: int) -> int:
        return length // self.geometry.chunk_tokens * self.geometry.chunk_tokens

    def _register(self, task: OnloadTask | OffloadTask) -> None:
        task.record.pins += 1
        self.tasks.add(task)

    def _finish(self, task: OnloadTask | OffloadTask) -> None:
        self.tasks.remove(task)
        self.tiers.release_pages(task.held_pages)
        self.tiers.chunks.release(task.held_chunks)
        self._unpin(task.record)

    def _check_leased(self, record: UserRecord) -> None:
        if record not in self.leased:
            raise PinError("a look-up or lease was ended that is not out")

    def _end_lease(self, record: UserRecord) -> None:
        self.leased.remove(record)
        self._unpin(record)
        for task, failed in self._ended_loads.pop(record, ()):
            self.onload_done(task, failed)

    def _unpin(self, record: UserRecord) -> None:
        if record.pins <= 0:
            raise PinError("a user was unpinned more often than pinned")
        record.pins -= 1

    def _bound_logs(self) -> None:
        """Forget the longest unseen users, state and all, while token logs exceed their limit."""
        while self.log_bytes > self._max_log_bytes:
            record = next((record for _, record in self.users.items() if not record.pins), None)
            if record is None:
                return
            self._forget(record)
            self.counters.logs_dropped += 1

    def _forget(self, record: UserRecord) -> None:
        record.onload = None
        self.tiers.drop_device(record)
        self.tiers.drop_host(record)
        self.users.discard(record.user)
        self.log_bytes -= BYTES_PER_USER + record.log.size_bytes
        record.log.wipe()
