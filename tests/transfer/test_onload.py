"""Loads: bytes, layer order, waits, and a failure at every copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from threading import Event as Gate

import numpy as np
import pytest
import torch

from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import CompletionQueue
from mtserve_backend.transfer.onload import Onloader, OnloadHandle
from mtserve_backend.transfer.paths import DirectPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Stream, WaitTimeout
from tests.transfer import scene
from tests.transfer.conftest import PATIENCE_S
from tests.transfer.scene import LAYERS, before_call, failing, finished, onload
from tests.transfer.test_streams import broken_by, hold, wait_until

Start = Callable[..., Stream]
Gates = Callable[[], Gate]


@dataclass
class Setting:
    pools: Pools
    onload: Stream
    scatter: Stream
    compute: Stream
    completions: CompletionQueue
    onloader: Onloader


def make(start: Start, kind: str) -> Setting:
    pools, completions = scene.pools(), CompletionQueue()
    streams = start("onload"), start("scatter"), start("compute")
    onloader = Onloader(pools, scene.path(kind, pools, start), streams[0], streams[1], completions)
    return Setting(pools, *streams, completions, onloader)


@pytest.fixture
def setting(start: Start) -> Setting:
    return make(start, "direct")


@pytest.fixture(params=["direct", "staged"])
def either(start: Start, request: pytest.FixtureRequest) -> Setting:
    """By each of the ways from the host."""
    return make(start, request.param)


def settle(handle: OnloadHandle) -> None:
    for event in handle.layers:
        event.wait(PATIENCE_S)


# Pages of a chunk: 3. Everything staged; a part; nothing; one page, from the middle of nowhere.
TASKS = [
    ([4, 1], 5, [19, 12, 13, 16, 14], [3, 4, 5, 0, 9]),
    ([2, 3], 6, [12, 13], [8, 2, 0, 1, 11, 10]),
    ([0], 3, [], [7, 6, 5]),
    ([5], 1, [15], [4]),
]


@pytest.mark.parametrize("parts", TASKS)
def test_every_byte_arrives_where_it_belongs_and_nowhere_else(either: Setting, parts: tuple) -> None:
    chunks, pages, staged, primary = parts
    expected, host = either.pools.device.clone(), either.pools.host.clone()
    for index in range(pages):
        page = either.pools.host[chunks[index // 3], :, index % 3]
        for target in (staged[index], primary[index]) if index < len(staged) else (primary[index],):
            expected[:, target] = page
    task = onload(chunks, pages, staged, primary)
    (handle,) = either.onloader.load([task], after=None)
    either.onloader.scatter(handle)
    completion = finished(either.completions)
    assert completion.task is task
    assert not completion.failed
    assert torch.equal(either.pools.device, expected)
    assert torch.equal(either.pools.host, host)
    assert handle.arrived


def test_loaded_pages_can_be_read_in_place_before_they_are_scattered(setting: Setting) -> None:
    task = onload([1], 3, [12, 13, 14], [0, 1, 2])
    (handle,) = setting.onloader.load([task], after=None)
    settle(handle)
    assert torch.equal(setting.pools.device[:, 12:15], setting.pools.host[1])
    assert not torch.equal(setting.pools.device[:, 0:3], setting.pools.host[1])
    assert setting.completions.wait(0.0) is None


def test_layer_0_of_everyone_comes_first_and_each_layer_is_an_event(setting: Setting, gates: Gates) -> None:
    gate = gates()
    tasks = [onload([0], 3, [], [0, 1, 2]), onload([1], 3, [], [3, 4, 5])]
    with before_call("copy_pages", lambda call: hold(gate) if call == 3 else None) as calls:
        handles = setting.onloader.load(tasks, after=None)
        handles[0].layers[0].wait(PATIENCE_S)
        wait_until(lambda: len(calls) == 4)
        assert [[event.done for event in handle.layers] for handle in handles] == [[True, False, False]] * 2
        assert not any(handle.arrived for handle in handles)
        assert torch.equal(setting.pools.device[0, 3:6], setting.pools.host[1, 0])
        assert not torch.equal(setting.pools.device[1, 3:6], setting.pools.host[1, 1])
        gate.set()
        settle(handles[1])


def test_a_layer_is_scattered_as_it_arrives(setting: Setting, gates: Gates) -> None:
    """Layer 1 is held back on the way in: layer 0 is scattered meanwhile, layer 1 is not."""
    gate = gates()
    layer_0, scattered = gates(), []
    real, device = copies.scatter_pages, setting.pools.device

    def load(call: int) -> None:
        if call == 1:
            hold(gate)

    def scatter(layer: torch.Tensor, staged: np.ndarray, primary: np.ndarray) -> None:
        real(layer, staged, primary)
        scattered.append(next(number for number in range(LAYERS) if layer.data_ptr() == device[number].data_ptr()))
        layer_0.set()

    class Way(DirectPath):
        """Straight, and counted: a scatter copies pages too, and must not be mistaken for a load."""

        def load(self, host, layer, runs, bus):  # type: ignore[no-untyped-def]
            load(next(calls))
            super().load(host, layer, runs, bus)

    calls = count()
    onloader = Onloader(setting.pools, Way(), setting.onload, setting.scatter, setting.completions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "scatter_pages", scatter)
        (handle,) = onloader.load([onload([0], 1, [12], [0])], after=None)
        onloader.scatter(handle)
        assert layer_0.wait(PATIENCE_S)
        assert setting.completions.wait(0.05) is None
        assert scattered == [0]
        assert torch.equal(device[0, 0], setting.pools.host[0, 0, 0])
        gate.set()
        assert not finished(setting.completions).failed
    assert scattered == [0, 1, 2]


def test_a_load_waits_for_the_last_use_of_its_pages(either: Setting, gates: Gates) -> None:
    gate = gates()
    either.compute.submit(lambda: hold(gate))
    before = either.pools.device.clone()
    (handle,) = either.onloader.load([onload([0], 3, [], [0, 1, 2])], after=either.compute.record())
    with pytest.raises(WaitTimeout):
        handle.layers[0].wait(0.1)
    assert not handle.arrived
    assert torch.equal(either.pools.device, before)
    gate.set()
    settle(handle)
    assert torch.equal(either.pools.device[:, 0:3], either.pools.host[0])


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_load_that_fails_in_any_layer_is_never_done(setting: Setting, layer: int) -> None:
    """Nor is anybody else's."""
    bad, good = onload([0], 3, [], [0, 1, 2]), onload([1], 3, [12, 13, 14], [3, 4, 5])
    with before_call("copy_pages", failing(2 * layer)) as calls:
        handles = setting.onloader.load([bad, good], after=None)
        for handle in handles:
            settle(handle)
    for handle in handles:
        setting.onloader.scatter(handle)
    completions = {
        completion.task: completion.failed for completion in (finished(setting.completions) for _ in handles)
    }
    assert completions == {bad: True, good: False}
    assert len(calls) == LAYERS + layer + 1, "what had failed already was loaded further"
    assert handles[0].failed
    assert not handles[0].arrived
    assert handles[1].arrived
    assert torch.equal(setting.pools.device[:, 3:6], setting.pools.host[1])
    assert setting.onload.broken is None


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_scatter_that_fails_in_any_layer_is_never_done(setting: Setting, layer: int) -> None:
    bad, good = onload([0], 3, [12, 13, 14], [0, 1, 2]), onload([1], 3, [15, 16, 17], [3, 4, 5])
    handles = setting.onloader.load([bad, good], after=None)
    for handle in handles:
        settle(handle)
    with before_call("scatter_pages", failing(layer)):
        for handle in handles:
            setting.onloader.scatter(handle)
        completions = [finished(setting.completions) for _ in handles]
    assert {completion.task: completion.failed for completion in completions} == {bad: True, good: False}
    assert torch.equal(setting.pools.device[:, 3:6], setting.pools.host[1])
    assert setting.scatter.broken is None


def test_one_task_is_reported_once(setting: Setting) -> None:
    (handle,) = setting.onloader.load([onload([0], 1, [12], [0])], after=None)
    for _ in range(3):
        setting.onloader.scatter(handle)
    finished(setting.completions)
    setting.scatter.record().wait(PATIENCE_S)
    assert setting.completions.wait(0.0) is None


def test_a_load_that_cannot_be_started_is_failed_and_reported(setting: Setting) -> None:
    setting.onload.close(PATIENCE_S)
    handles = setting.onloader.load([onload([0], 1, [12], [0]), onload([1], 1, [], [1])], after=None)
    assert all(handle.failed for handle in handles)
    for handle in handles:
        setting.onloader.scatter(handle)
        assert finished(setting.completions).failed


def test_a_load_whose_stream_dies_has_not_arrived(setting: Setting, gates: Gates) -> None:
    gate = gates()
    setting.onload.submit(lambda: hold(gate))
    broken_by(setting.onload, SystemExit())
    (handle,) = setting.onloader.load([onload([0], 1, [12], [0])], after=None)
    gate.set()
    wait_until(lambda: setting.onload.broken is not None)
    assert not handle.arrived
    setting.onloader.scatter(handle)
    wait_until(lambda: setting.scatter.broken is not None)


def test_a_scatter_that_cannot_be_started_is_failed(setting: Setting) -> None:
    (handle,) = setting.onloader.load([onload([0], 1, [12], [0])], after=None)
    settle(handle)
    setting.scatter.close(PATIENCE_S)
    setting.onloader.scatter(handle)
    assert handle.failed
    assert not handle.arrived
