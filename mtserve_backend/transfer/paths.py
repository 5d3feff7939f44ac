"""The way between the host pool and the device: straight, if the pool is pinned; else through pinned staging buffers.

Source: MTServe section 4.2. A staged transfer has two halves, one on the host and one over the bus, that run at the
same time on alternating buffers; each buffer is a layer of a chunk, so that both halves are block copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import torch

from mtserve_backend.kernels import copies
from mtserve_backend.kernels.layout import PageNumbers
from mtserve_backend.transfer.streams import Event, Stream

Guard = Callable[[Callable[[], None]], Callable[[], None]]


class HostPath(Protocol):
    """Submits copies of a run of pages. `guard` wraps each piece of work, to catch what it raises."""

    def load(self, source: torch.Tensor, layer: torch.Tensor, pages: PageNumbers, bus: Stream, guard: Guard) -> None:
        """Host pages `source` to `layer[pages]`; done when the `bus` stream has come so far."""
        ...

    def save(self, source: torch.Tensor, target: torch.Tensor, bus: Stream, guard: Guard) -> None:
        """Device pages `source` to host pages `target`; done when the `bus` stream has come so far after `settle`."""
        ...

    def settle(self, bus: Stream) -> None:
        """Order what is submitted to `bus` from here on after every `save` so far."""
        ...


class DirectPath:
    """The pool is pinned: every copy is one DMA on the bus stream."""

    def load(self, source: torch.Tensor, layer: torch.Tensor, pages: PageNumbers, bus: Stream, guard: Guard) -> None:
        bus.submit(guard(lambda: copies.copy_pages(layer, pages, source)))

    def save(self, source: torch.Tensor, target: torch.Tensor, bus: Stream, guard: Guard) -> None:
        bus.submit(guard(lambda: copies.copy(target, source)))

    def settle(self, bus: Stream) -> None:
        del bus


@dataclass(eq=False)
class _Staging:
    """A pinned buffer, one layer of a chunk; it may be overwritten after the event `free`."""

    pages: torch.Tensor
    free: Event | None = None


class StagedPath:
    """The pool is pageable: two buffers take turns. `workers` are host streams that copy between buffers and pool.

    One thread submits, for one direction: loads and saves need a path each. With `zero` buffers are overwritten after
    use.
    """

    def __init__(
        self, buffers: tuple[torch.Tensor, torch.Tensor], workers: tuple[Stream, ...], zero: bool = False
    ) -> None:
        self._zero = zero
        self._turns = cycle([_Staging(buffer) for buffer in buffers])
        self._workers = workers
        self._next_worker = cycle(workers)

    def load(self, source: torch.Tensor, layer: torch.Tensor, pages: PageNumbers, bus: Stream, guard: Guard) -> None:
        staging, worker = next(self._turns), next(self._next_worker)
        buffer = staging.pages[: len(source)]
        if staging.free is not None:
            worker.wait(staging.free)
        worker.submit(guard(lambda: copies.copy(buffer, source)))
        bus.wait(worker.record())
        bus.submit(guard(lambda: copies.copy_pages(layer, pages, buffer)))
        if self._zero:
            bus.submit(guard(lambda: copies.zero_all(buffer)))
        staging.free = bus.record()

    def save(self, source: torch.Tensor, target: torch.Tensor, bus: Stream, guard: Guard) -> None:
        staging, worker = next(self._turns), next(self._next_worker)
        buffer = staging.pages[: len(source)]
        if staging.free is not None:
            bus.wait(staging.free)
        bus.submit(guard(lambda: copies.copy(buffer, source)))
        worker.wait(bus.record())
        worker.submit(guard(lambda: copies.copy(target, buffer)))
        if self._zero:
            worker.submit(guard(lambda: copies.zero_all(buffer)))
        staging.free = worker.record()

    def settle(self, bus: Stream) -> None:
        for worker in self._workers:
            bus.wait(worker.record())
