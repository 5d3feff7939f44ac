"""What the loads of one wave share: an event a layer, and no report before their last byte has moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mtserve_backend.cache.history import TokenLog
from mtserve_backend.cache.records import Geometry, OnloadTask, UserRecord, runs_of
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.onload import Onloader
from mtserve_backend.transfer.paths import DirectPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import CpuStream

LAYERS = 3


@pytest.fixture
def streams() -> Iterator[tuple[CpuStream, CpuStream]]:
    pair = (CpuStream("onload", 5), CpuStream("scatter", 5))
    yield pair
    for stream in pair:
        stream.close(5)


def task(user: int, chunk: int, page: int, staged: int | None) -> OnloadTask:
    """One page of a chunk, to `page`; by way of `staged`, if given."""
    pages, primary = np.array([page if staged is None else staged]), np.array([page])
    through = pages if staged is not None else pages[:0]
    return OnloadTask(
        record=UserRecord(user, TokenLog()),
        tokens=4,
        pages=pages,
        chunk_pages=1,
        staged=through,
        primary=primary[: len(through)],
        held_pages=primary,
        held_chunks=np.array([chunk]),
    )


@pytest.mark.parametrize("staged", [(None, None), (8, None), (8, 9)])
def test_a_load_is_reported_after_its_last_layer(
    streams: tuple[CpuStream, CpuStream], staged: tuple[int | None, int | None]
) -> None:
    onload, scatter = streams
    geometry = Geometry(page_tokens=4, chunk_tokens=4, device_pages=8, onload_pages=2, host_chunks=2)
    pools = Pools.allocate(geometry, KVShape(LAYERS, 1, 2), torch.device("cpu"), torch.float32)
    pools.host.copy_(torch.arange(pools.host.numel()).view(pools.host.shape))
    completions = CompletionQueue()
    onloader = Onloader(pools, DirectPath(), onload, scatter, completions)
    gate = threading.Event()
    onload.submit(lambda: gate.wait(5) and None)
    tasks = [task(1, 0, 3, staged[0]), task(2, 1, 5, staged[1])]
    handles = onloader.load(tasks, after=None)
    assert [len(handle.layers) for handle in handles] == [LAYERS, LAYERS]
    assert handles[0].layers == handles[1].layers
    onloader.scatter(*handles)
    onloader.scatter(*handles)
    assert completions.wait(0.1) is None
    assert not any(handle.arrived for handle in handles)
    gate.set()
    assert [completions.wait(5).task for _ in tasks] == tasks  # type: ignore[union-attr]
    assert completions.wait(0.1) is None
    for number, page in enumerate((3, 5)):
        assert torch.equal(pools.device[:, page], pools.host[number, :, 0])


def test_runs_are_cut_where_chunks_end() -> None:
    runs = runs_of(np.array([7, 4, 9]), np.arange(20, 26), first_page=3, chunk_pages=4)
    assert [(run.chunk, run.first, run.pages.tolist()) for run in runs] == [
        (7, 3, [20]),
        (4, 0, [21, 22, 23, 24]),
        (9, 0, [25]),
    ]
    assert runs_of(np.array([7]), np.arange(0), first_page=0, chunk_pages=4) == []
    with pytest.raises(IndexError, match="6 pages from page 3"):
        runs_of(np.array([7, 4]), np.arange(20, 26), first_page=3, chunk_pages=4)
