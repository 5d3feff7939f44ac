"""Real pools with a different value in every slot, tasks on them, and copies that fail or wait where they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mtserve_backend.cache.history import TokenLog
from mtserve_backend.cache.records import Geometry, OffloadTask, OnloadTask, UserRecord, runs_of
from mtserve_backend.kernels import copies
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.paths import DirectPath, HostPath, StagedPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Stream
from tests.transfer.conftest import PATIENCE_S

LAYERS = 3
KV = KVShape(layers=LAYERS, heads=2, head_dim=2)
GEOMETRY = Geometry(page_tokens=2, chunk_tokens=6, device_pages=12, onload_pages=8, host_chunks=6)


class InjectedFailure(OSError):
    """A copy that fails on purpose."""


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def pools() -> Pools:
    made = Pools.allocate(GEOMETRY, KV, torch.device("cpu"), torch.float32)
    made.device.copy_(torch.arange(made.device.numel()).view_as(made.device) + 1.0)
    made.host.copy_(-(torch.arange(made.host.numel()).view_as(made.host) + 1.0))
    return made


def path(kind: str, pools: Pools, start: Callable[..., Stream], zero: bool = False) -> HostPath:
    """Straight, or through staging buffers and host workers."""
    if kind == "direct":
        return DirectPath()
    return StagedPath(pools.staging(), (start("worker 0"), start("worker 1")), zero)


def onload(chunks: Sequence[int], pages: int, staged: Sequence[int], primary: Sequence[int]) -> OnloadTask:
    """Of `pages` pages: the first to `staged` and on to `primary`, the rest to what is left of `primary` at once."""
    count = len(staged)
    targets = slots(*staged, *primary[count:])
    return OnloadTask(
        record=UserRecord("u", TokenLog()),
        tokens=pages * GEOMETRY.page_tokens,
        pages=targets,
        chunk_pages=GEOMETRY.chunk_pages,
        staged=slots(*staged),
        primary=slots(*primary[:count]),
        held_pages=slots(*staged, *primary),
        held_chunks=slots(*chunks),
    )


def offload(chunks: Sequence[int], first_page: int, pages: Sequence[int]) -> OffloadTask:
    """Of `pages`, pages `first_page ...` of a history whose chunks these are."""
    start = first_page * GEOMETRY.page_tokens
    return OffloadTask(
        record=UserRecord("u", TokenLog()),
        start=start,
        stop=start + len(pages) * GEOMETRY.page_tokens,
        runs=runs_of(slots(*chunks), slots(*pages), first_page, GEOMETRY.chunk_pages),
        buffer_tokens=len(pages) * GEOMETRY.page_tokens,
        new_chunks=slots(*chunks),
        held_pages=slots(*pages),
        held_chunks=slots(*chunks),
    )


def finished(completions: CompletionQueue) -> Completion:
    completion = completions.wait(PATIENCE_S)
    assert completion is not None, "the task was never reported"
    return completion


@contextmanager
def before_call(name: str, act: Callable[[int], None]) -> Iterator[list[int]]:
    """Have `act(n)` run before the n-th call of `copies.<name>`; what it raises, the copy raises. Yields the calls."""
    real, calls = getattr(copies, name), []

    def wrapped(*args: object) -> None:
        calls.append(len(calls))
        act(calls[-1])
        real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, name, wrapped)
        yield calls


def failing(at: int) -> Callable[[int], None]:
    def act(call: int) -> None:
        if call == at:
            raise InjectedFailure(f"call {at}")

    return act
