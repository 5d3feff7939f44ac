"""Device to host, behind everything else: gather pages into a transient buffer, transfer, report.

Source: MTServe section 4.2, "Transient Offload Pipeline". The manager keeps the buffers' total below the quota.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from mtserve_backend.cache.records import OffloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.paths import HostPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Event, Stream, StreamBroken

log = logging.getLogger(__name__)


class Offloader:
    """Submits tasks to the offload stream. With `zero` the transient buffers are overwritten after use."""

    def __init__(
        self, pools: Pools, path: HostPath, offload: Stream, completions: CompletionQueue, zero: bool = False
    ) -> None:
        self._pools = pools
        self._path = path
        self._offload = offload
        self._completions = completions
        self._zero = zero

    def save(self, task: OffloadTask, after: Event) -> None:
        """Start a task. `after` is the compute that wrote its pages."""
        try:
            job = _Job(self._pools, task)
        except RuntimeError:
            log.exception("no memory for a transient buffer; the user's new keys stay on the device only")
            self._completions.put(Completion(task, failed=True))
            return
        try:
            self._offload.wait(after)
            self._offload.submit(job.guarded(job.gather))
            self._path.save(job.buffer, self._pools.host, task.runs, self._offload, job.guarded)
            self._path.settle(self._offload)
            if self._zero:
                self._offload.submit(job.guarded(partial(copies.zero_all, job.buffer)))
            self._offload.submit(lambda: self._completions.put(Completion(task, job.failed)))
        except StreamBroken:
            log.error("the offload stream is gone; its user's new keys stay on the device only")


class _Job:
    """A task and its transient buffer `[layers, pages, 2, heads, page_tokens, head_dim]`."""

    def __init__(self, pools: Pools, task: OffloadTask) -> None:
        device = pools.device
        shape = (device.shape[0], len(task.held_pages), *device.shape[2:])
        self.buffer = torch.empty(shape, dtype=device.dtype, device=device.device)
        self.failed = False
        self._device = device
        self._pages = task.held_pages

    def gather(self) -> None:
        copies.gather_pages(self.buffer, self._device, self._pages)

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if self.failed:
                return
            try:
                work()
            except Exception:
                log.exception("an offload failed; the user's new keys stay on the device only")
                self.failed = True

        return run
