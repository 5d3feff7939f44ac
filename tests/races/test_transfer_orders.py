"""Every event that orders two streams, one test each: one side is held back, the other must not overtake it.

`python -m tests.races.mutate_waits` takes the waits away one at a time and demands that a test fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from mtserve_backend.kernels import copies
from mtserve_backend.kernels.layout import Segment
from mtserve_backend.transfer.streams import CpuStream
from mtserve_backend.transfer.view import CacheView, Placement
from tests.races.bench import GRACE_S, KV, LAYERS, PAGE, Bench, hold, slots, slowed

BOTH = pytest.mark.parametrize("bench", ["pinned", "pageable"], indirect=True)
STAGED = pytest.mark.parametrize("bench", ["pageable"], indirect=True)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.close()


@BOTH
def test_a_load_does_not_overwrite_a_page_that_is_still_read(bench: Bench) -> None:
    """vllm 47282: free, reallocate as a load's target, while the reader is slow."""
    task = bench.load_task([2, 3], staged=[16, 17], in_place=[9, 10])
    pages = torch.from_numpy(task.held_pages)
    before, read = bench.pools.device[:, pages].clone(), []
    hold(bench.compute)
    bench.compute.submit(lambda: read.append(bench.pools.device[:, pages].clone()))
    (handle,) = bench.onloader.load([task], after=bench.compute.record())
    handle.layers[-1].wait(10)
    bench.compute.record().wait(10)
    assert torch.equal(read[0], before)
    assert torch.equal(bench.pools.device[:, pages], bench.host_pages([2, 3], 4))


@BOTH
@pytest.mark.parametrize("late", range(LAYERS))
def test_a_scatter_takes_no_layer_before_it_has_arrived(bench: Bench, late: int) -> None:
    """LMCache 1068: a sentinel per layer, one layer delayed."""
    task = bench.load_task([4, 5], staged=[18, 19, 20], in_place=[11])
    loaded = bench.pools.device[late].data_ptr()
    with slowed(copies, "copy_pages", lambda target, *_: target.data_ptr() == loaded):
        (handle,) = bench.onloader.load([task], after=None)
        bench.onloader.scatter(handle)
        assert not bench.completion().failed
    assert torch.equal(bench.pools.device[:, :3], bench.host_pages([4, 5], 3))
    bench.onload.record().wait(10)


@BOTH
def test_a_save_does_not_read_a_page_before_it_is_written(bench: Bench) -> None:
    """vllm 45704: slow the writer, offload, compare bytes."""
    task = bench.save_task([3, 5, 6], [0, 1])
    written = torch.randn_like(bench.pools.device[:, :3])
    hold(bench.compute)

    def write() -> None:
        bench.pools.device[:, torch.tensor([3, 5, 6])] = written

    bench.compute.submit(write)
    bench.offloader.save(task, after=bench.compute.record())
    assert not bench.completion().failed
    assert torch.equal(bench.host_pages([0, 1], 3), written)


@STAGED
@pytest.mark.parametrize("worker", [0, 1])
def test_a_staged_load_crosses_the_bus_after_its_host_half(bench: Bench, worker: int) -> None:
    task = bench.load_task([6, 7], staged=[], in_place=[1, 2, 3, 4])
    hold(bench.workers[worker])
    (handle,) = bench.onloader.load([task], after=None)
    handle.layers[-1].wait(10)
    assert torch.equal(bench.pools.device[:, 1:5], bench.host_pages([6, 7], 4))


@STAGED
def test_a_staging_buffer_is_not_filled_again_before_it_has_crossed_the_bus(bench: Bench) -> None:
    task = bench.load_task([5, 6, 7], staged=[], in_place=[1, 2, 3, 4, 5, 6])
    hold(bench.onload)
    (handle,) = bench.onloader.load([task], after=None)
    handle.layers[-1].wait(10)
    assert torch.equal(bench.pools.device[:, 1:7], bench.host_pages([5, 6, 7], 6))


@STAGED
def test_a_staged_save_reaches_the_host_after_it_has_crossed_the_bus(bench: Bench) -> None:
    task = bench.save_task([1, 2, 3, 4], [0, 1])
    expected = bench.pools.device[:, 1:5].clone()
    hold(bench.offload)
    bench.offloader.save(task, after=bench.compute.record())
    assert not bench.completion().failed
    assert torch.equal(bench.host_pages([0, 1], 4), expected)


@STAGED
def test_a_staging_buffer_is_not_filled_again_before_the_host_has_it(bench: Bench) -> None:
    task = bench.save_task([1, 2, 3, 4, 5, 6], [0, 1, 2])
    expected = bench.pools.device[:, 1:7].clone()
    for worker in bench.workers[2:]:
        hold(worker)
    bench.offloader.save(task, after=bench.compute.record())
    assert not bench.completion().failed
    assert torch.equal(bench.host_pages([0, 1, 2], 6), expected)


@STAGED
@pytest.mark.parametrize("late", [1, 2])
def test_a_save_is_reported_when_every_copying_thread_is_done(bench: Bench, late: int) -> None:
    """Reported too early, chunks could be loaded, or handed to another user, before they are written.

    Layers 1 and 2 of the last chunk are the last pieces of one copying thread each.
    """
    task = bench.save_task([1, 2, 3, 4], [0, 1])
    expected = bench.pools.device[:, 1:5].clone()
    target = bench.pools.host[1, late].data_ptr()
    with slowed(copies, "copy", lambda into, _: into.data_ptr() == target):
        bench.offloader.save(task, after=bench.compute.record())
        assert not bench.completion().failed
        assert torch.equal(bench.host_pages([0, 1], 4), expected)


@STAGED
@pytest.mark.parametrize("layer", [1, 2])
def test_a_save_whose_last_host_half_fails_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    target, copy = bench.pools.host[1, layer].data_ptr(), copies.copy

    def failing(into: torch.Tensor, source: torch.Tensor) -> None:
        if into.data_ptr() == target:
            raise OSError("no such memory")
        copy(into, source)

    monkeypatch.setattr(copies, "copy", failing)
    bench.offloader.save(bench.save_task([1, 2, 3, 4], [0, 1]), after=bench.compute.record())
    assert bench.completion().failed


@BOTH
@pytest.mark.parametrize("late", range(LAYERS))
def test_attention_in_a_layer_waits_for_that_layer(bench: Bench, late: int) -> None:
    task = bench.load_task([2, 3], staged=[16, 17], in_place=[9])
    expected = bench.host_pages([2, 3], 3)
    pages = slots([16, 17, 9])
    segment = Segment(first_row=0, cached=3 * PAGE, new=0, targets=1, visible=3 * PAGE)
    out: list[torch.Tensor] = []
    row = torch.ones(1, KV.heads * KV.head_dim)
    loaded = bench.pools.device[late].data_ptr()
    with slowed(copies, "copy_pages", lambda target, *_: target.data_ptr() == loaded):
        handles = bench.onloader.load([task], after=None)
        view = CacheView(bench.pools.device, KV, [Placement(segment, pages)], handles, bench.compute, 16)
        ((_, attend),) = view.spans()
        bench.compute.submit(lambda: out.extend(attend(layer, row, row, row) for layer in range(LAYERS)))
        bench.compute.record().wait(10)
    for layer in range(LAYERS):
        keys, values = expected[layer].unbind(1)
        scores = torch.nn.functional.silu((keys * 1.0).sum(-1))
        seen = (scores[..., None] * values).sum(dim=(0, 2)).reshape(-1)
        own = torch.nn.functional.silu(torch.tensor(float(KV.head_dim)))
        torch.testing.assert_close(out[layer][0], seen + own, rtol=1e-5, atol=1e-3)


def test_a_layer_waits_for_no_other_layer() -> None:
    """The other half of the promise: attention in layer 0 runs while layer 1 is still on its way."""
    bench = Bench("pinned")
    task = bench.load_task([2], staged=[], in_place=[1, 2])
    loaded = bench.pools.device[1].data_ptr()
    with slowed(copies, "copy_pages", lambda target, *_: target.data_ptr() == loaded):
        handles = bench.onloader.load([task], after=None)
        view = CacheView(bench.pools.device, KV, [], handles, bench.compute, 16)
        view.await_layer(0)
        assert view.waited_s < GRACE_S / 2
        handles[0].layers[-1].wait(10)
    bench.close()


@STAGED
def test_nothing_is_reported_while_a_surviving_stream_still_copies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copying thread is dead, so the load fails; but another one may be in the middle of its part."""
    task = bench.load_task([2, 3], staged=[], in_place=[1, 2, 3, 4])

    def die() -> None:
        raise SystemExit("killed")

    bench.workers[1].submit(die)
    wait_until(lambda: bench.workers[1].broken is not None)
    host_half, copying = copies.copy, []

    def slow(target: torch.Tensor, source: torch.Tensor) -> None:
        copying.append(source)
        time.sleep(GRACE_S)
        host_half(target, source)
        copying.pop()

    monkeypatch.setattr(copies, "copy", slow)
    (handle,) = bench.onloader.load([task], after=None)
    bench.onloader.scatter(handle)
    assert bench.completion().failed
    assert not copying, "a chunk was read after its task was over"


@pytest.mark.parametrize("zero", [False, True])
def test_a_staging_buffer_is_not_written_again_before_the_device_has_it(
    zero: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's bus goes on by itself: what is issued is done later, and `mark` says when."""
    bench = Bench("pageable", zero)
    dma, copy_pages = CpuStream("dma", 10), copies.copy_pages

    def issue(target: torch.Tensor, pages: np.ndarray, source: torch.Tensor) -> None:
        hold(dma, 0.05)
        dma.submit(lambda: copy_pages(target, pages, source))

    monkeypatch.setattr(copies, "copy_pages", issue)
    monkeypatch.setattr(bench.onload, "mark", dma.record)
    task = bench.load_task([5, 6, 7], staged=[], in_place=[1, 2, 3, 4, 5, 6])
    (handle,) = bench.onloader.load([task], after=None)
    handle.layers[-1].wait(10)
    dma.record().wait(10)
    dma.close(10)
    bench.close()
    assert torch.equal(bench.pools.device[:, 1:7], bench.host_pages([5, 6, 7], 6))


@STAGED
def test_the_host_half_of_a_save_waits_for_the_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    dma, copy = CpuStream("dma", 10), copies.copy
    buffers = {staging.pages.data_ptr() for staging in bench.save_path._stagings}

    def issue(target: torch.Tensor, source: torch.Tensor) -> None:
        if target.data_ptr() not in buffers:
            copy(target, source)
            return
        hold(dma, 0.05)
        dma.submit(lambda: copy(target, source))

    monkeypatch.setattr(copies, "copy", issue)
    monkeypatch.setattr(bench.offload, "mark", dma.record)
    task = bench.save_task([1, 2, 3, 4], [0, 1])
    expected = bench.pools.device[:, 1:5].clone()
    bench.offloader.save(task, after=bench.compute.record())
    assert not bench.completion().failed
    dma.close(10)
    assert torch.equal(bench.host_pages([0, 1], 4), expected)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_bench_can_tell_bytes_apart() -> None:
    """Without this, the comparisons above would prove nothing."""
    bench = Bench("pinned")
    values = np.unique(bench.host_pages(list(range(8)), 16)[..., 0, 0, 0, 0].numpy())
    assert len(values) == 16 * LAYERS
    assert len(np.intersect1d(values, bench.pools.device.numpy())) == 0
    bench.close()
