"""The way between the host pool and the device: straight, if the pool is pinned; else through pinned staging buffers.

Source: MTServe section 4.2. A staged transfer has two halves, one on the host and one over the bus, that run at the
same time on alternating buffers; each buffer is a layer of a chunk, so that both halves are block copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Protocol

import torch

from mtserve_backend.cache.records import PageRun
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.streams import CopyStream, Event, Stream


class HostPath(Protocol):
    """Copies for a work item of the `bus` stream, which must be the stream that runs it.

    Whatever a call raises, none of its host-side work goes on after it.
    """

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        """Host pages to the runs' pages of `layer`.

        `host` is the layer's share of the pool, `[chunks, chunk_pages, 2, heads, page_tokens, head_dim]`.
        """
        ...

    def save(self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        """`buffer` to the runs' host pages.

        `host` is the pool, `[chunks, layers, ...]`; `buffer[layer]` are the pages, one run's after the other's.
        """
        ...


class DirectPath:
    """The pool is pinned: every copy is a DMA."""

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        del bus
        for run in runs:
            copies.copy_pages(layer, run.pages, host_pages(host, run))

    def save(self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        del bus
        for source, target in _pairs(buffer, host, runs):
            copies.copy(target, source)


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


class _HostCopy:
    """A copy by a worker, once `after` has been reached."""

    def __init__(self, worker: Stream, target: torch.Tensor, source: torch.Tensor, after: Event | None = None) -> None:
        self._target, self._source = target, source
        self._error: Exception | None = None
        if after is not None:
            worker.wait(after)
        worker.submit(self._work)
        self._copied = worker.record()

    def result(self) -> None:
        """Wait for its end, however long: what it touches must not be used before. Raises what it raised."""
        self._copied.wait(None)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            copies.copy(self._target, self._source)
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error


@dataclass(eq=False)
class _Staging:
    """A pinned buffer, one layer of a chunk, the host's copy into or out of it, and its last way over the bus."""

    pages: torch.Tensor
    copy: _HostCopy | None = None
    crossed: Event | None = None


class StagedPath:
    """The pool is pageable: two buffers take turns. `workers` are host streams that copy between buffers and pool.

    For one bus, and so for one direction. With `zero` buffers are overwritten after use.
    """

    def __init__(
        self, buffers: tuple[torch.Tensor, torch.Tensor], workers: tuple[Stream, ...], zero: bool = False
    ) -> None:
        self._zero = zero
        self._stagings = [_Staging(buffer) for buffer in buffers]
        self._turns = cycle(self._stagings)
        self._workers = cycle(workers)

    def load(self, host: torch.Tensor, layer: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        ahead: deque[Callable[[], None]] = deque()
        try:
            for run in runs:
                ahead.append(self._start_load(host_pages(host, run), layer, run, bus))
                if len(ahead) == len(self._stagings):
                    ahead.popleft()()
            while ahead:
                ahead.popleft()()
        finally:
            self._come_to_rest()

    def save(self, buffer: torch.Tensor, host: torch.Tensor, runs: Sequence[PageRun], bus: CopyStream) -> None:
        try:
            for source, target in _pairs(buffer, host, runs):
                staging = next(self._turns)
                if staging.copy is not None:
                    staging.copy.result()
                pages = staging.pages[: len(source)]
                copies.copy(pages, source)
                staging.copy = _HostCopy(next(self._workers), target, pages, after=bus.mark())
            for staging in self._stagings:
                if staging.copy is not None:
                    staging.copy.result()
        finally:
            self._come_to_rest()

    def _start_load(
        self, source: torch.Tensor, layer: torch.Tensor, run: PageRun, bus: CopyStream
    ) -> Callable[[], None]:
        """Begin the host's half; what is returned is the other one."""
        staging = next(self._turns)
        if staging.crossed is not None:
            staging.crossed.wait(None)
        pages = staging.pages[: len(source)]
        staging.copy = _HostCopy(next(self._workers), pages, source)
        return partial(self._cross, staging, staging.copy, pages, layer, run, bus)

    @staticmethod
    def _cross(
        staging: _Staging, copy: _HostCopy, pages: torch.Tensor, layer: torch.Tensor, run: PageRun, bus: CopyStream
    ) -> None:
        copy.result()
        copies.copy_pages(layer, run.pages, pages)
        staging.crossed = bus.mark()

    def _come_to_rest(self) -> None:
        """Nothing of this call's may be at work after it, nor, with `zero`, be left in the buffers."""
        for staging in self._stagings:
            if staging.copy is not None:
                with suppress(Exception):  # it ended, one way or the other
                    staging.copy.result()
                staging.copy = None
            if self._zero:
                if staging.crossed is not None:
                    staging.crossed.wait(None)
                copies.zero_all(staging.pages)
