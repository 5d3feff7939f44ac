"""The kernels where the server uses them: the cache view, and the warm-up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from mtserve_backend.kernels import append_kernel, attention_kernel, copy_kernel, device
from mtserve_backend.kernels.layout import KVShape, Segment
from mtserve_backend.kernels.warmup import warm_up
from mtserve_backend.transfer.streams import CpuStream
from mtserve_backend.transfer.view import CacheView, Placement

KV = KVShape(layers=2, heads=2, head_dim=16)
WIDTH = KV.heads * KV.head_dim


def attended(on_kernels: bool, uploads: Counter[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two layers of a slice: one user in the pool, two in scratch pages."""
    generator = torch.Generator().manual_seed(0)
    pool = torch.full((KV.layers, 6, 2, KV.heads, 4, KV.head_dim), torch.nan)
    pool[:, [4, 1]] = torch.randn(KV.layers, 2, 2, KV.heads, 4, KV.head_dim, generator=generator)
    placements = [
        Placement(Segment(0, 0, 5, 1, 5), None),
        Placement(Segment(6, 7, 4, 2, 11), np.array([4, 1, 2])),
        Placement(Segment(12, 0, 3, 0, 0), None),
    ]
    q, k, v = torch.randn(3, 15, WIDTH, generator=generator)
    real = device.upload

    def counted(*arguments: object) -> torch.Tensor:
        uploads["tables"] += 1
        return real(*arguments)  # type: ignore[arg-type]

    compute = CpuStream("compute", 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "runs_kernels", lambda _: on_kernels)
        patch.setattr(device, "upload", counted)
        view = CacheView(pool, KV, placements, [], compute, span_rows=100)
        ((rows, attend),) = view.spans()
        outs = [attend(layer, q[rows], k[rows], v[rows]) for layer in range(KV.layers)]
    compute.close(1)
    return torch.stack(outs), pool


def test_a_view_attends_alike_with_kernels_and_without() -> None:
    uploads: Counter[str] = Counter()
    expected, pool = attended(False, uploads)
    assert not uploads
    out, kernel_pool = attended(True, uploads)
    assert uploads["tables"] == 2, "once for the pool's batch and once for the scratch pages', and not in each layer"
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(kernel_pool.nan_to_num(99.0), pool.nan_to_num(99.0))


def test_the_warm_up_runs_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Counter[str] = Counter()

    class Counting:
        def __init__(self, name: str, kernel: object) -> None:
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid: tuple[int, ...]) -> object:
            run[self.name] += 1
            return self.kernel[grid]  # type: ignore[index]

    for module, name in (
        (append_kernel, "append_kernel"),
        (attention_kernel, "attend_kernel"),
        (attention_kernel, "sum_kernel"),
        (copy_kernel, "copy_pages_kernel"),
    ):
        monkeypatch.setattr(module, name, Counting(name, getattr(module, name)))
    warm_up(KV, 32, torch.bfloat16, torch.device("cpu"))
    assert run == {"append_kernel": 1, "attend_kernel": 1, "sum_kernel": 1, "copy_pages_kernel": 2}
