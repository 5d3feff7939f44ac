"""Device to host, behind everything else: gather pages into a transient buffer, transfer, report.

Source: MTServe section 4.2, "Transient Offload Pipeline". The manager keeps the buffers' total below the quota.
"""

from __future__ import annotations

import logging

import torch

from mtserve_backend.cache.records import OffloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Event, Stream, StreamBroken

log = logging.getLogger(__name__)


class Offloader:
    """Submits tasks to the offload stream."""

    def __init__(self, pools: Pools, offload: Stream, completions: CompletionQueue, zero: bool = False) -> None:
        self._zero = zero
        self._pools = pools
        self._offload = offload
        self._completions = completions

    def save(self, task: OffloadTask, after: Event) -> None:
        """Start a task. `after` is the compute that wrote its pages."""
        try:
            self._offload.wait(after)
            self._offload.submit(lambda: self._save(task))
        except StreamBroken:
            log.error("the offload stream is gone; its user's new keys stay on the device only")

    def _save(self, task: OffloadTask) -> None:
        failed = True
        try:
            self._copy(task)
            failed = False
        except Exception:
            log.exception("an offload failed; the user's new keys stay on the device only")
        finally:
            self._completions.put(Completion(task, failed))

    def _copy(self, task: OffloadTask) -> None:
        device, host = self._pools.device, self._pools.host
        pages = task.held_pages
        buffer = torch.empty((device.shape[0], len(pages), *device.shape[2:]), dtype=device.dtype, device=device.device)
        for layer in range(len(buffer)):
            copies.gather_pages(buffer[layer], device[layer], pages)
        done = 0
        for run in task.runs:
            count = len(run.pages)
            for layer in range(len(buffer)):
                target = host[run.chunk, layer, run.first : run.first + count]
                copies.copy(target, buffer[layer, done : done + count])
            done += count
        if self._zero:
            buffer.zero_()
