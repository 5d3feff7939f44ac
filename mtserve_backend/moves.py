"""What moves between the tiers: the manager's plans to the transfer workers, their reports back to the manager."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Lease, OffloadTask, OnloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader, OnloadHandle
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Stream

# After a save that failed, nothing is saved for so long: what is wrong is hardly mended at once, and not by trying.
SAVE_PAUSE_S = 1.0


class Moves:
    """For the engine's thread. Every transfer is ordered after the compute submitted before it."""

    def __init__(
        self,
        manager: CacheManager,
        pools: Pools,
        compute: Stream,
        onloader: Onloader,
        offloader: Offloader,
        completions: CompletionQueue,
        timeout_s: float,
    ) -> None:
        self.manager = manager
        self._pools = pools
        self._compute = compute
        self.onloader = onloader
        self.offloader = offloader
        self._completions = completions
        self._timeout_s = timeout_s
        self._handles: dict[OnloadTask, OnloadHandle] = {}
        self._save_from = 0.0

    def take_in(self) -> None:
        """Tell the manager what the copying threads have reported."""
        for completion in self._completions.drain():
            self._complete(completion)

    def await_one(self) -> bool:
        """Wait for a transfer to give back what it holds; False if none is under way or none ends in time."""
        completion = self._completions.wait(self._timeout_s) if self.manager.tasks else None
        if completion is not None:
            self._complete(completion)
        return completion is not None

    def start_onloads(self, leases: Iterable[Lease]) -> None:
        """Start what the leases wait for, unless an earlier wave has."""
        self.zero_freed()
        tasks = [lease.onload for lease in leases if lease.onload is not None]
        new = [task for task in tasks if task not in self._handles]
        if new:
            for handle in self.onloader.load(new, after=self._compute.record()):
                self._handles[handle.task] = handle

    def handle(self, lease: Lease) -> OnloadHandle | None:
        """The load a lease must wait for: None if its keys are there."""
        return None if lease.onload is None else self._handles[lease.onload]

    def scatter(self, leases: Iterable[Lease]) -> None:
        """Start moving what the leases' loads bring to primary pages. Safe to ask for twice."""
        self.onloader.scatter(*(handle for lease in leases if (handle := self.handle(lease)) is not None))

    def save(self, plan: Callable[[], list[OffloadTask]]) -> None:
        """Start the offloads that one of the manager's plans asks for, unless saving has failed a moment ago."""
        if self.offloader.broken or time.monotonic() < self._save_from:
            return
        tasks = plan()
        self.zero_freed()
        if tasks:
            written = self._compute.record()
            for task in tasks:
                self.offloader.save(task, after=written)

    def zero_freed(self) -> None:
        """Overwrite what became free, before its next owner writes: work that follows is ordered after it."""
        tiers = self.manager.tiers
        for pool, tensor, dim in (
            (tiers.primary, self._pools.device, 1),
            (tiers.onload, self._pools.device, 1),
            (tiers.chunks, self._pools.host, 0),
        ):
            freed = pool.take_freed()
            if len(freed):
                freed.sort()
                self._compute.submit(partial(copies.zero, tensor, freed, dim))

    def _complete(self, completion: Completion) -> None:
        task = completion.task
        if isinstance(task, OffloadTask):
            self.manager.offload_done(task, completion.failed)
            if completion.failed:
                self._save_from = time.monotonic() + SAVE_PAUSE_S
        else:
            del self._handles[task]
            self.manager.onload_done(task, completion.failed)
