"""Saves: bytes, waits, and a failure at every copy."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Gate

import numpy as np
import pytest
import torch

from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Visit
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Stream
from tests.cache.shadow import tokens_of
from tests.transfer import scene
from tests.transfer.conftest import PATIENCE_S
from tests.transfer.scene import GEOMETRY, LAYERS, before_call, failing, finished, offload
from tests.transfer.test_streams import hold

Start = Callable[..., Stream]
Gates = Callable[[], Gate]


class Setting:
    """By one of the ways to the host."""

    def __init__(self, start: Start, kind: str, zero: bool = False) -> None:
        self.pools: Pools = scene.pools()
        self.stream, self.compute = start("offload"), start("compute")
        self.completions = CompletionQueue()
        self.path = scene.path(kind, self.pools, start, zero)
        self.offloader = Offloader(self.pools, self.path, self.stream, self.completions, zero)


@pytest.fixture(params=["direct", "staged"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def setting(start: Start, kind: str) -> Setting:
    return Setting(start, kind)


# Whole chunks; the second half of a chunk and one more, from scattered pages; one page of a chunk.
TASKS = [([4, 1], 0, [0, 1, 2, 3, 4, 5]), ([3, 0], 1, [9, 2, 10, 11, 5]), ([5, 2], 5, [7])]


@pytest.mark.parametrize(("chunks", "first", "pages"), TASKS)
def test_every_byte_arrives_where_it_belongs_and_nowhere_else(
    setting: Setting, chunks: list[int], first: int, pages: list[int]
) -> None:
    expected, device = setting.pools.host.clone(), setting.pools.device.clone()
    for index, page in enumerate(pages, start=first):
        expected[chunks[index // 3], :, index % 3] = setting.pools.device[:, page]
    task = offload(chunks, first, pages)
    setting.offloader.save(task, after=setting.compute.record())
    completion = finished(setting.completions)
    assert completion.task is task
    assert not completion.failed
    assert torch.equal(setting.pools.host, expected)
    assert torch.equal(setting.pools.device, device)


def test_a_save_waits_for_the_compute_that_writes_its_pages(setting: Setting, gates: Gates) -> None:
    gate = gates()

    def write() -> None:
        hold(gate)
        setting.pools.device[:, 0] = 42.0

    setting.compute.submit(write)
    setting.offloader.save(offload([0], 0, [0]), after=setting.compute.record())
    assert setting.completions.wait(0.05) is None
    gate.set()
    assert not finished(setting.completions).failed
    assert (setting.pools.host[0, :, 0] == 42.0).all()


@pytest.mark.parametrize(("what", "least"), [("gather_pages", 1), ("copy", LAYERS)])
def test_a_save_that_fails_at_any_copy_is_never_done(setting: Setting, what: str, least: int) -> None:
    task, after = offload([4, 1], 0, [0, 1, 2, 3, 5, 6]), setting.compute.record()
    with before_call(what, lambda call: None) as calls:
        setting.offloader.save(task, after)
        assert not finished(setting.completions).failed
    assert len(calls) >= least
    for call in range(len(calls)):
        with before_call(what, failing(call)):
            setting.offloader.save(task, after)
            assert finished(setting.completions).failed, f"{what} number {call} of {len(calls)} failed"
    assert setting.stream.broken is None


def test_one_failed_save_does_not_touch_the_next(setting: Setting) -> None:
    after = setting.compute.record()
    with before_call("gather_pages", failing(0)):
        setting.offloader.save(offload([0], 0, [0, 1, 2]), after)
        setting.offloader.save(offload([1], 0, [3, 4, 5]), after)
        assert [finished(setting.completions).failed for _ in range(2)] == [True, False]
    assert torch.equal(setting.pools.host[1], setting.pools.device[:, 3:6])


def test_a_save_that_cannot_be_started_does_not_raise(setting: Setting) -> None:
    """It must not fail the requests whose keys it was to save."""
    after = setting.compute.record()
    setting.stream.close(PATIENCE_S)
    setting.offloader.save(offload([0], 0, [0]), after)


def test_a_state_saved_evicted_and_loaded_again_is_the_same_state(start: Start, kind: str) -> None:
    """With the manager's own tasks, grown in steps, with the buffer too small for all of it."""
    setting = Setting(start, kind, zero=True)
    cache = CacheManager(GEOMETRY, lambda length: 0, offload_quota_tokens=100, max_log_bytes=10**9)
    pools = setting.pools
    onloader = Onloader(
        pools, scene.path(kind, pools, start, zero=True), start("onload"), start("scatter"), setting.completions
    )
    expected = torch.randn(LAYERS, 24, 2, 2, 2, generator=torch.Generator().manual_seed(1))

    def slot(pages: np.ndarray, position: int) -> torch.Tensor:
        return pools.device[:, int(pages[position // 2]), :, :, position % 2]

    for length in (6, 11, 23):
        lease = cache.prepare(cache.look_up(Visit(1, tokens_of(0, [(i, 0) for i in range(length)]))))
        assert lease is not None
        assert lease.pages is not None
        for position in range(lease.cached, length):
            slot(lease.pages, position).copy_(expected[:, position])
        cache.commit(lease)
        for task in cache.plan_offloads():
            setting.offloader.save(task, after=setting.compute.record())
            completion = finished(setting.completions)
            cache.offload_done(task, completion.failed)
    for length in (24, 0):
        stranger = cache.prepare(cache.look_up(Visit(2, tokens_of(0, [(7, 0)] * length))))
        assert stranger is not None
        cache.commit(stranger)
    pools.device.fill_(torch.nan)
    lease = cache.prepare(cache.look_up(Visit(1, tokens_of(0, [(i, 0) for i in range(23)]))))
    assert lease is not None
    assert lease.pages is not None
    assert lease.onload is not None
    assert lease.cached == 18
    assert 0 < len(lease.onload.staged) < 9 or len(lease.onload.staged) == GEOMETRY.onload_pages
    (handle,) = onloader.load([lease.onload], after=setting.compute.record())
    for event in handle.layers:
        event.wait(PATIENCE_S)
    for pages in (lease.pages, None):
        if pages is None:
            cache.commit(lease)
            onloader.scatter(handle)
            cache.onload_done(lease.onload, finished(setting.completions).failed)
            pages = lease.record.pages
        for position in range(18):
            assert torch.equal(slot(pages, position), expected[:, position])
