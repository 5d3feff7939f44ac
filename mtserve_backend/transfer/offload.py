"""Device to host, behind everything else: gather pages into a transient buffer, transfer, report.

Source: MTServe section 4.2, "Transient Offload Pipeline". The manager keeps the buffers' total below the quota.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import torch

from mtserve_backend.cache.records import OffloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.paths import HostPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.stopwatch import Stopwatch
from mtserve_backend.transfer.streams import CopyStream, Event, StreamBroken

log = logging.getLogger(__name__)


class Offloader:
    """Submits tasks to the offload stream. With `zero` the transient buffers are overwritten after use.

    `seconds` is how long the stream was at work, up to what was reported last.
    """

    def __init__(
        self, pools: Pools, path: HostPath, offload: CopyStream, completions: CompletionQueue, zero: bool = False
    ) -> None:
        self._pools = pools
        self._path = path
        self._offload = offload
        self._completions = completions
        self._zero = zero
        self.seconds = 0.0

    @property
    def broken(self) -> bool:
        """Whether the offload stream has died: nothing can be saved any more."""
        return self._offload.broken is not None

    def save(self, task: OffloadTask, after: Event) -> None:
        """Start a task. `after` is the compute that wrote its pages. Never raises: what cannot start has failed."""
        job = _Job(task, Stopwatch(self._offload))
        try:
            self._offload.wait(after)
            self._offload.submit(partial(self._run, job))
        except StreamBroken:
            log.error("the offload stream is gone; its user's new keys stay on the device only")
            job.failed = True
        self._offload.notify(partial(self._report, job))

    def _run(self, job: _Job) -> None:
        """On the offload stream, to which the transient buffer `[layers, pages, 2, heads, ...]` belongs."""
        device, pages = self._pools.device, job.task.held_pages
        try:
            buffer = torch.empty(
                (device.shape[0], len(pages), *device.shape[2:]), dtype=device.dtype, device=device.device
            )
            try:
                with job.watch.lap():
                    copies.gather_pages(buffer, device, pages)
                    self._path.save(buffer, self._pools.host, job.task.runs, self._offload)
            finally:
                if self._zero:
                    copies.zero_all(buffer)
        except Exception:
            log.exception("an offload failed; the user's new keys stay on the device only")
            job.failed = True

    def _report(self, job: _Job, error: BaseException | None) -> None:
        self.seconds += job.watch.take()
        self._completions.put(Completion(job.task, job.failed or error is not None))


@dataclass(eq=False)
class _Job:
    task: OffloadTask
    watch: Stopwatch
    failed: bool = False
