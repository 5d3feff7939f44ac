"""The memory: its shape, and a clear word when there is not enough of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.pools import PoolError, Pools
from tests.transfer.scene import GEOMETRY, KV, offload


def test_shapes_and_sizes() -> None:
    pools = Pools.allocate(GEOMETRY, KV, torch.device("cpu"), torch.float16)
    assert pools.device.shape == (3, 20, 2, 2, 2, 2)
    assert pools.host.shape == (6, 3, 3, 2, 2, 2, 2)
    assert (pools.device_bytes, pools.host_bytes) == (3 * 20 * 16 * 2, 6 * 9 * 16 * 2)
    assert pools.device.is_contiguous()
    assert pools.host.is_contiguous()


def test_pools_of_nothing() -> None:
    pools = Pools.allocate(
        replace(GEOMETRY, device_pages=0, onload_pages=0, host_chunks=0), KV, torch.device("cpu"), torch.float32
    )
    assert (pools.device_bytes, pools.host_bytes) == (0, 0)


def test_what_does_not_fit_is_refused_with_the_sizes() -> None:
    with pytest.raises(PoolError, match=r"host_cache 1\d\d,\d{3},\d{3} MiB, device_cache .* MiB; available [\d,]+ MiB"):
        Pools.allocate(replace(GEOMETRY, host_chunks=2**38), KV, torch.device("cpu"), torch.float32)


def test_completions_are_taken_in_order_and_once() -> None:
    completions = CompletionQueue()
    sent = [Completion(offload([0], 0, [number]), failed=number % 2 == 1) for number in range(3)]
    for completion in sent:
        completions.put(completion)
    assert completions.wait(0.0) is sent[0]
    assert list(completions.drain()) == sent[1:]
    assert list(completions.drain()) == []
    assert completions.wait(0.01) is None
