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
    """Submits copies of one layer of a task. `guard` wraps each piece of work, to catch what it raises.

    `host` is the layer's share of the pool, `[chunks, chunk_pages, 2, heads, page_tokens, head_dim]`; `runs` are pages
    of its chunks. Submitting is the engine's time and copying is not: what can be left to the streams is.
    """

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard) -> None:
        """Host pages to the runs' pages of `layer`; done when the `bus` stream has come so far."""
        ...

    def save(
        self, source: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        """Pages `source`, one run's after the other's, to the host; done as far as `bus` has come after `settle`."""
        ...

    def settle(self, bus: Stream) -> None:
        """Order what is submitted to `bus` from here on after every `save` so far."""
        ...


class DirectPath:
    """The pool is pinned: every copy is a DMA on the bus stream, and a layer of a task is one submission."""

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard) -> None:
        def work() -> None:
            for run in runs:
                copies.copy_pages(layer, run.pages, host_pages(host, run))

        bus.submit(guard(work))

    def save(
        self, source: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        def work() -> None:
            for run, pages in zip(runs, split(source, runs), strict=True):
                copies.copy(host_pages(host, run), pages)

        bus.submit(guard(work))

    def settle(self, bus: Stream) -> None:
        del bus


def host_pages(host: torch.Tensor, run: PageRun) -> torch.Tensor:
    """A run's pages in one layer of the host pool."""
    return host[run.chunk, run.first : run.first + len(run.pages)]


def split(pages: torch.Tensor, runs: Sequence[PageRun]) -> Iterator[torch.Tensor]:
    """Each run's share of pages that hold one run's after the other's."""
    start = 0
    for run in runs:
        yield pages[start : start + len(run.pages)]
        start += len(run.pages)


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
        self, source: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: Stream, guard: Guard
    ) -> None:
        for run, pages in zip(runs, split(source, runs), strict=True):
            self._save_run(pages, host_pages(host, run), bus, guard)

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
