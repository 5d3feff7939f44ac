"""The cache as a model sees it: layer l waits for layer l, and keys that did not come are an error, never a score."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Gate

import numpy as np
import pytest
import torch

from mtserve_backend.kernels.layout import Segment
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.onload import Onloader, OnloadFailed
from mtserve_backend.transfer.paths import DirectPath
from mtserve_backend.transfer.streams import Stream
from mtserve_backend.transfer.view import CacheView, Placement
from tests.transfer import scene
from tests.transfer.conftest import PATIENCE_S, WAIT_LIMIT_S
from tests.transfer.scene import KV, before_call, failing, onload
from tests.transfer.test_streams import broken_by, hold

Start = Callable[..., Stream]
Gates = Callable[[], Gate]
WIDTH = KV.heads * KV.head_dim


class Setting:
    def __init__(self, start: Start) -> None:
        self.pools = scene.pools()
        self.onload, self.compute = start("onload"), start("compute")
        self.onloader = Onloader(self.pools, DirectPath(), self.onload, start("scatter"), CompletionQueue())

    def failure(self, view: CacheView, layer: int) -> OnloadFailed | None:
        """What a work item on the compute stream meets when it awaits the layer."""
        met: list[OnloadFailed | None] = []

        def work() -> None:
            try:
                view.await_layer(layer)
            except OnloadFailed as failed:
                met.append(failed)
            else:
                met.append(None)

        self.compute.submit(work)
        self.compute.record().wait(PATIENCE_S)
        return met[0]


@pytest.fixture
def setting(start: Start) -> Setting:
    return Setting(start)


def test_a_layer_waits_for_its_own_load_only(setting: Setting, gates: Gates) -> None:
    gate = gates()
    with before_call("copy_pages", lambda call: hold(gate) if call == 1 else None):
        handles = setting.onloader.load([onload([0], 1, [], [0])], after=None)
        view = CacheView(setting.pools.device, KV, [], handles, setting.compute, span_rows=100)
        assert setting.failure(view, 0) is None
        late = setting.failure(view, 1)
        assert late is not None
        assert late.tasks == (handles[0].task,)
        assert view.waited_s >= WAIT_LIMIT_S
        gate.set()
        assert setting.failure(view, 2) is None


def test_only_the_tasks_that_failed_are_named(setting: Setting) -> None:
    tasks = [onload([number], 1, [], [number]) for number in range(3)]
    with before_call("copy_pages", failing(4)):
        handles = setting.onloader.load(tasks, after=None)
        view = CacheView(setting.pools.device, KV, [], handles, setting.compute, span_rows=100)
        failures = [setting.failure(view, layer) for layer in (1, 2)]
    for failed in failures:
        assert failed is not None
        assert failed.tasks == (tasks[1],)


def test_a_dead_stream_is_met_at_once_and_does_not_kill_the_compute(setting: Setting, gates: Gates) -> None:
    gate = gates()
    setting.onload.submit(lambda: hold(gate))
    broken_by(setting.onload, SystemExit())
    handles = setting.onloader.load([onload([0], 1, [], [0])], after=None)
    view = CacheView(setting.pools.device, KV, [], handles, setting.compute, span_rows=100)
    gate.set()
    assert setting.failure(view, 0) is not None
    assert setting.compute.broken is None


def test_a_load_that_was_never_started_is_a_failure(setting: Setting) -> None:
    setting.onload.close(PATIENCE_S)
    handles = setting.onloader.load([onload([0], 1, [], [0])], after=None)
    view = CacheView(setting.pools.device, KV, [], handles, setting.compute, span_rows=100)
    assert setting.failure(view, 0) is not None


def test_what_is_kept_nowhere_leaves_the_pool_alone_and_is_attended_all_the_same(setting: Setting) -> None:
    """Two requests without pages beside one with: the same numbers from scratch pages."""
    generator = torch.Generator().manual_seed(2)
    one = torch.randn(3, 5, WIDTH, generator=generator)
    q, k, v = (torch.cat((part, part, part)) for part in one)
    placements = [
        Placement(Segment(0, 0, 4, 1, 4), None),
        Placement(Segment(5, 0, 4, 1, 4), np.array([3, 1])),
        Placement(Segment(10, 0, 4, 1, 4), None),
    ]
    before = setting.pools.device.clone()
    view = CacheView(setting.pools.device, KV, placements, [], setting.compute, span_rows=100)
    ((rows, attend),) = view.spans()
    out = attend(1, q[rows], k[rows], v[rows])
    assert torch.equal(out[0:5], out[5:10])
    assert torch.equal(out[0:5], out[10:15])
    touched = torch.zeros_like(before, dtype=torch.bool)
    touched[1, [3, 1]] = True
    assert torch.equal(setting.pools.device[~touched], before[~touched])
    assert torch.equal(setting.pools.device[1, 3, 0, :, 0], k[5].view(2, 2))


@pytest.mark.parametrize("span_rows", [1, 3, 4, 5, 7])
def test_uncached_rows_cut_into_spans_give_the_same_numbers(setting: Setting, span_rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 7, WIDTH, generator=generator)
    placement = Placement(Segment(0, 0, 5, 2, 5), None)

    def attended(rows_at_once: int) -> torch.Tensor:
        view = CacheView(setting.pools.device, KV, [placement], [], setting.compute, rows_at_once)
        assert all(len(q[rows]) <= rows_at_once for rows, _ in view.spans())
        return torch.cat([attend(0, q[rows], k[rows], v[rows]) for rows, attend in view.spans()])

    torch.testing.assert_close(attended(span_rows), attended(100))
