"""Loads and saves by the product's own workers, against the link's speed: from submission to the last byte."""

from __future__ import annotations

import time

import numpy as np
import torch

from mtserve_backend.cache.history import TokenLog
from mtserve_backend.cache.records import Geometry, OffloadTask, OnloadTask, UserRecord, runs_of
from mtserve_backend.cache.slots import Slots
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.cuda_streams import HostedCudaStream
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader
from mtserve_backend.transfer.paths import DirectPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import CopyStream, CpuStream
from perf.gpu import ceilings
from perf.gpu.figures import Figure, of_rates
from perf.gpu.place import Place

ONLOAD_AIM, OFFLOAD_AIM = 0.85, 0.85
LIMIT_S = 60.0


class Room:
    """Pools for `batch` histories on both tiers, and the streams between them."""

    def __init__(self, place: Place, batch: int) -> None:
        scale, model = place.scale, place.scale.model
        self.place, self.batch = place, batch
        chunk_pages = scale.chunk_tokens // scale.page_tokens
        self.chunks_each = -(-scale.history // scale.chunk_tokens)
        self.pages_each = self.chunks_each * chunk_pages
        count = batch * self.pages_each
        self.geometry = Geometry(scale.page_tokens, scale.chunk_tokens, count, count, batch * self.chunks_each)
        kv = KVShape(model.layers, model.heads, model.head_dim)
        self.pools = Pools.allocate(self.geometry, kv, place.device, place.dtype)
        self.bytes = batch * self.chunks_each * scale.chunk_tokens * kv.values_per_token * place.dtype.itemsize
        self.onload, self.scatter, self.offload = (self._stream(name) for name in ("onload", "scatter", "offload"))
        self.completions = CompletionQueue()
        self.onloader = Onloader(self.pools, DirectPath(), self.onload, self.scatter, self.completions)
        self.offloader = Offloader(self.pools, DirectPath(), self.offload, self.completions)

    def _stream(self, name: str) -> CopyStream:
        if self.place.on_gpu:
            return HostedCudaStream(name, self.place.device, LIMIT_S)
        return CpuStream(name, LIMIT_S)

    def users(self) -> list[tuple[Slots, Slots, Slots]]:
        """Each one's chunks, staged pages and primary pages, as a running server has them: neighbours mostly."""
        chunks = np.arange(self.geometry.host_chunks).reshape(self.batch, -1)
        primary = np.arange(self.geometry.device_pages).reshape(self.batch, -1)
        return list(zip(chunks, primary + self.geometry.device_pages, primary, strict=True))

    def load(self) -> float:
        tasks = [
            OnloadTask(
                record=UserRecord(number, TokenLog()),
                tokens=self.pages_each * self.geometry.page_tokens,
                pages=staged,
                chunk_pages=self.geometry.chunk_pages,
                staged=staged,
                primary=primary,
                held_pages=np.concatenate((staged, primary)),
                held_chunks=chunks,
            )
            for number, (chunks, staged, primary) in enumerate(self.users())
        ]
        begin = time.perf_counter()
        handles = self.onloader.load(tasks, after=None)
        handles[-1].layers[-1].wait(LIMIT_S)
        taken = time.perf_counter() - begin
        self.onloader.scatter(*handles)
        self._await(len(tasks))
        return taken

    def save(self) -> float:
        """A chunk at a time, as histories grow."""
        before = self.scatter.record()
        tasks = []
        for number, (chunks, _, primary) in enumerate(self.users()):
            for index, pages in enumerate(np.split(primary, self.chunks_each)):
                one = chunks[index : index + 1]
                tasks.append(
                    OffloadTask(
                        record=UserRecord(number, TokenLog()),
                        start=index * self.geometry.chunk_tokens,
                        stop=(index + 1) * self.geometry.chunk_tokens,
                        runs=runs_of(one, pages, 0, self.geometry.chunk_pages),
                        buffer_tokens=self.geometry.chunk_tokens,
                        new_chunks=one,
                        held_pages=pages,
                        held_chunks=one,
                    )
                )
        begin = time.perf_counter()
        for task in tasks:
            self.offloader.save(task, after=before)
        self._await(len(tasks))
        return time.perf_counter() - begin

    def _await(self, count: int) -> None:
        for _ in range(count):
            completion = self.completions.wait(LIMIT_S)
            if completion is None or completion.failed:
                raise RuntimeError("a transfer failed or did not end: no figure")

    def close(self) -> None:
        for stream in (self.onload, self.scatter, self.offload):
            stream.close(LIMIT_S)


def run(place: Place) -> list[Figure]:
    best, _ = ceilings.measure(place)
    figures: list[Figure] = []
    for batch in (1, place.scale.busy):
        room = Room(place, batch)
        with torch.inference_mode():
            loads, saves = ([work() for _ in range(place.scale.repeats + 2)][2:] for work in (room.load, room.save))
        what = f"{place.scale.history:,} tokens of {batch} user{'s' if batch > 1 else ''}"
        figures += [
            of_rates(f"onload, {what}", room.bytes, loads, best.to_device, place.aim(ONLOAD_AIM)),
            of_rates(f"offload, {what}", room.bytes, saves, best.to_host, place.aim(OFFLOAD_AIM)),
        ]
        room.close()
    return figures
