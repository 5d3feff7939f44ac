"""The way between the host pool and the device: straight, if the pool is pinned; else through pinned staging buffers.

Source: MTServe section 4.2. A staged transfer has two halves, one on the host and one over the bus, that run at the
same time on alternating buffers; each buffer is a layer of a chunk, so that both halves are block copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Protocol

import torch

from mtserve_backend.cache.records import PageRun
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.streams import Event, Stream

Guard = Callable[[Callable[[], None]], Callable[[], None]]


class HostPath(Protocol):
    """Submits the copies of a task. `guard` wraps each piece of work, to catch what it raises.

    Submitting is the engine's time and copying is not: what can be left to the streams is.
    """

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard) -> None:
        """Host pages to the runs' pages of `layer`; done when the `bus` stream has come so far.

        `host` is the layer's share of the pool, `[chunks, chunk_pages, 2, heads, page_tokens, head_dim]`.
        """
        ...

    def save(
        self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        """`buffer` to the runs' host pages; done when the `bus` stream has come so far after `settle`.

        `host` is the pool, `[chunks, layers, ...]`; `buffer[layer]` are the pages, one run's after the other's.
        """
        ...

    def settle(self, bus: Stream) -> None:
        """Order what is submitted to `bus` from here on after every `save` so far."""
        ...


class DirectPath:
    """The pool is pinned: every copy is a DMA. A layer of a load is one submission, and so is a save."""

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard) -> None:
        def work() -> None:
            for run in runs:
                copies.copy_pages(layer, run.pages, host_pages(host, run))

        bus.submit(guard(work))

    def save(
        self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        def work() -> None:
            for source, target in _pairs(buffer, host, runs):
                copies.copy(target, source)

        bus.submit(guard(work))

    def settle(self, bus: Stream) -> None:
        del bus


def host_pages(host: torch.Tensor, run: PageRun) -> torch.Tensor:
    """A run's pages in one layer of the host pool."""
    return host[run.chunk, run.first : run.first + len(run.pages)]


def _pairs(
    buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each run's pages in a transient buffer and in the host pool, layer by layer."""
    for pages, layer in zip(buffer, host.unbind(1), strict=True):
        start = 0
        for run in runs:
            stop = start + len(run.pages)
            yield pages[start:stop], host_pages(layer, run)
            start = stop


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

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard) -> None:
        for run in runs:
            self._load_run(host_pages(host, run), partial(copies.copy_pages, layer, run.pages), bus, guard)

    def save(
        self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        for source, target in _pairs(buffer, host, runs):
            self._save_run(source, target, bus, guard)

    def settle(self, bus: Stream) -> None:
        for worker in self._workers:
            bus.wait(worker.record())

    def _load_run(
        self, source: torch.Tensor, unload: Callable[[torch.Tensor], None], bus: Stream, guard: Guard
    ) -> None:
        staging, worker = next(self._turns), next(self._next_worker)
        buffer = staging.pages[: len(source)]
        if staging.free is not None:
            worker.wait(staging.free)
        worker.submit(guard(lambda: copies.copy(buffer, source)))
        bus.wait(worker.record())
        bus.submit(guard(lambda: unload(buffer)))
        if self._zero:
            bus.submit(guard(lambda: copies.zero_all(buffer)))
        staging.free = bus.record()

    def _save_run(self, source: torch.Tensor, target: torch.Tensor, bus: Stream, guard: Guard) -> None:
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
