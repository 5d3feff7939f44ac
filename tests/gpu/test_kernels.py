"""The kernels on the device, against the torch reference on the CPU: random ragged batches, in all types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtserve_backend.kernels import copies, device
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.kernels.warmup import warm_up
from tests.gpu.place import EXAMPLES, INTERPRETED
from tests.kernels.against_reference import DTYPES, PAGE_TOKENS, check
from tests.kernels.ragged import Part, Ragged, batches, same_bits
from tests.kernels.strategies import any_bits, dtypes, layer_counts, orders, shapes


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_do_what_the_reference_does(where: torch.device, dtype: torch.dtype) -> None:
    @settings(max_examples=EXAMPLES)
    @given(batches(longest=40 if INTERPRETED else 200, widest=256, page_tokens=(*PAGE_TOKENS, 256)))
    def search(ragged: Ragged) -> None:
        check(ragged, dtype, where)

    search()


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_do_so_in_the_configuration_of_a_server(where: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    parts = (
        Part(300 if INTERPRETED else 3000, 64, 64),
        Part(300, 20, 13, hidden=1),
        Part(0, 700, 0),
        Part(33, 0, 3, gap=1),
        Part(0, 0, 0),
    )
    check(Ragged(parts, heads=4, head_dim=head_dim, page_tokens=32, seed=1), dtype, where)


def test_every_bit_is_scattered_and_gathered(where: torch.device) -> None:
    @settings(max_examples=EXAMPLES)
    @given(orders, st.integers(0, 3), layer_counts, shapes, dtypes)
    def search(order: np.ndarray, count: int, layers: int, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        before = any_bits(layers, len(order), shape, dtype, seed=1)
        storage, staged, primary = before.to(where), order[:count], order[count : 2 * count]
        copies.scatter_pages(storage[-1], staged, primary)
        expected = before.clone()
        expected[-1, primary] = before[-1, staged]
        assert same_bits(storage.cpu(), expected)
        guarded = any_bits(layers + 2, len(order), shape, dtype, seed=3).to(where)
        guards = guarded[[0, -1]].cpu()
        copies.gather_pages(guarded[1:-1], storage, order)
        assert same_bits(guarded[1:-1].cpu(), expected[:, order])
        assert same_bits(guarded[[0, -1]].cpu(), guards)
        assert same_bits(storage.cpu(), expected)

    search()


def test_nothing_is_compiled_after_the_warm_up(where: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the lengths, the batch and the pages: a user never waits for a compiler."""
    if where.type != "cuda":
        pytest.skip("nothing is compiled on a CPU")
    import triton

    compiled: list[str] = []

    def noted(*_: object, **told: object) -> None:
        compiled.append(str(told["repr"]))

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", noted)
    # No other test has such pages: what they compiled would hide what this one asks for.
    warm_up(KVShape(layers=2, heads=3, head_dim=112), 40, torch.bfloat16, where)
    assert compiled, "the hook heard nothing of the warm-up: it would not hear of a request either"
    compiled.clear()
    for parts in ((Part(1, 1, 1),), (Part(7000, 64, 64), Part(0, 0, 3)), tuple(Part(100 * i, i, i) for i in range(9))):
        check(Ragged(parts, heads=3, head_dim=112, page_tokens=40), torch.bfloat16, where)
    assert not compiled


def test_the_device_runs_what_this_suite_is_about(where: torch.device) -> None:
    if where.type == "cuda":
        assert device.runs_kernels(where)
        assert device.programs(where) > 1
