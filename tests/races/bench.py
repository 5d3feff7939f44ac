"""The transfer room by itself: real pools, real streams, tasks made by hand, and no engine that waits for anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from mtserve_backend.cache.history import TokenLog
from mtserve_backend.cache.records import Geometry, OffloadTask, OnloadTask, UserRecord, runs_of
from mtserve_backend.cache.slots import Slots
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader
from mtserve_backend.transfer.paths import DirectPath, HostPath, StagedPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import CpuStream

LAYERS, PAGE, CHUNK_PAGES = 3, 4, 2
GEOMETRY = Geometry(page_tokens=PAGE, chunk_tokens=PAGE * CHUNK_PAGES, device_pages=16, onload_pages=8, host_chunks=8)
KV = KVShape(LAYERS, 2, 8)

# How long one side is held back for the other to overtake it. What has no reason to wait needs a millisecond.
GRACE_S = 0.3


class Bench:
    """Four streams, two workers each way. Device pages hold -(page + 1), host chunks layer + page/100 + chunk."""

    def __init__(self, host_memory: str, zero: bool = False) -> None:
        self.pools = Pools.allocate(GEOMETRY, KV, torch.device("cpu"), torch.float32)
        self.compute, self.onload, self.scatter, self.offload = (
            CpuStream(name, 10) for name in ("compute", "onload", "scatter", "offload")
        )
        self.workers = tuple(CpuStream(f"worker-{number}", 10) for number in range(4))
        self.completions = CompletionQueue()
        self.onloader = Onloader(
            self.pools, self._path(host_memory, self.workers[:2], zero), self.onload, self.scatter, self.completions
        )
        self.save_path = self._path(host_memory, self.workers[2:], zero)
        self.offloader = Offloader(self.pools, self.save_path, self.offload, self.completions, zero)
        pages = torch.arange(self.pools.device.shape[1], dtype=torch.float32)
        self.pools.device.copy_(-(pages + 1)[None, :, None, None, None, None].expand_as(self.pools.device))
        for chunk in range(GEOMETRY.host_chunks):
            for layer in range(LAYERS):
                for page in range(CHUNK_PAGES):
                    self.pools.host[chunk, layer, page] = chunk * 10 + layer + page / 100

    def _path(self, host_memory: str, workers: tuple[CpuStream, ...], zero: bool) -> HostPath:
        return DirectPath() if host_memory == "pinned" else StagedPath(self.pools.staging(), workers, zero)

    def streams(self) -> tuple[CpuStream, ...]:
        return (self.compute, self.onload, self.scatter, self.offload, *self.workers)

    def close(self) -> None:
        for stream in self.streams():
            stream.close(10)

    def load_task(self, chunks: list[int], staged: list[int], in_place: list[int]) -> OnloadTask:
        """The pages of `chunks` into onload-buffer pages `staged`, then primary pages `in_place`."""
        read, primary = slots(staged + in_place), slots(range(len(staged)))
        return OnloadTask(
            record=UserRecord("user", TokenLog()),
            tokens=len(read) * PAGE,
            pages=read,
            chunk_pages=CHUNK_PAGES,
            staged=slots(staged),
            primary=primary,
            held_pages=read,
            held_chunks=slots(chunks),
        )

    def save_task(self, pages: list[int], chunks: list[int]) -> OffloadTask:
        return OffloadTask(
            record=UserRecord("user", TokenLog()),
            start=0,
            stop=len(pages) * PAGE,
            runs=runs_of(slots(chunks), slots(pages), 0, CHUNK_PAGES),
            buffer_tokens=len(pages) * PAGE,
            new_chunks=slots(chunks),
            held_pages=slots(pages),
            held_chunks=slots(chunks),
        )

    def completion(self) -> Completion:
        done = self.completions.wait(10)
        assert done is not None
        return done

    def host_pages(self, chunks: list[int], count: int) -> torch.Tensor:
        """What a load of `count` pages of `chunks` must bring, `[layers, pages, ...]`; a copy."""
        pages = [self.pools.host[chunk, :, page] for chunk in chunks for page in range(CHUNK_PAGES)]
        return torch.stack(pages[:count], dim=1).clone()


def slots(numbers: object) -> Slots:
    return np.array(list(numbers), dtype=np.int64)  # type: ignore[call-overload]


def hold(stream: CpuStream, seconds: float = GRACE_S) -> None:
    """Whatever should wait for this stream gets the time to prove that it does not."""
    stream.submit(lambda: time.sleep(seconds))


@contextmanager
def slowed(module: object, name: str, when: Callable[..., bool] = lambda *_: True) -> Iterator[threading.Event]:
    """A function that takes its time before it does its work; the event says that it was called."""
    original, called = getattr(module, name), threading.Event()

    def slow(*arguments: object) -> object:
        if when(*arguments):
            called.set()
            time.sleep(GRACE_S)
        return original(*arguments)

    setattr(module, name, slow)
    try:
        yield called
    finally:
        setattr(module, name, original)
