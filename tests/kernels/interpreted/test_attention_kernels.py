"""Append and attend as kernels, against the torch reference: random ragged batches, in all types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtserve_backend.kernels import attention, device, paged
from mtserve_backend.kernels.layout import Segment
from mtserve_backend.kernels.paged import PagedBatch
from mtserve_backend.kernels.tuning import Tuning, tuning_for
from tests.kernels.against_reference import DTYPES, PAGE_TOKENS, by_kernels, by_reference, check, relative_error
from tests.kernels.ragged import Part, Ragged, Scene, batches, same_bits

programs = st.sampled_from([1, 8, 64])


def small(dtype: torch.dtype, head_dim: int) -> Tuning:
    """Tiles and pieces so small that short histories have several; head dimensions in steps as in the real one."""
    real = tuning_for(dtype, head_dim)
    return dataclasses.replace(real, tile_rows=16, key_block=16, run_rows=8, least_piece=16)


@contextmanager
def configured(count: int, tiny: bool = True) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "programs", lambda _: count)
        if tiny:
            patch.setattr(paged, "tuning_for", small)
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40)
@given(batches(longest=40, widest=40, page_tokens=PAGE_TOKENS), programs)
def test_the_kernels_do_what_the_reference_does(dtype: torch.dtype, ragged: Ragged, count: int) -> None:
    with configured(count):
        check(ragged, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=300)
@given(batches(longest=200, widest=256, page_tokens=(*PAGE_TOKENS, 256)), programs, st.booleans())
def test_the_kernels_do_what_the_reference_does_at_length(
    dtype: torch.dtype, ragged: Ragged, count: int, tiny: bool
) -> None:
    with configured(count, tiny):
        check(ragged, dtype)


@pytest.mark.parametrize("head_dim", [32, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_the_configuration_of_a_server(dtype: torch.dtype, head_dim: int) -> None:
    """Whole tiles and several pages in a block of keys; long enough to be cut, beside short ones and an empty one."""
    parts = (Part(300, 20, 13, hidden=1), Part(0, 70, 0), Part(33, 0, 3, gap=1), Part(0, 0, 2), Part(0, 0, 0))
    with configured(8, tiny=False):
        check(Ragged(parts, heads=2, head_dim=head_dim, page_tokens=32, seed=1), dtype)


def test_a_long_history_is_cut_and_the_result_is_the_same_every_time() -> None:
    ragged = Ragged((Part(500, 7, 5), Part(3, 2, 1)), heads=1, head_dim=16, page_tokens=32)
    first, again, uncut, exact = (Scene(ragged, torch.float32) for _ in range(4))
    exact = exact.copy(torch.float64)
    by_reference(exact)
    with configured(64, tiny=False):
        batch = by_kernels(first)
        by_kernels(again)
    with configured(1, tiny=False):
        whole = by_kernels(uncut)
    assert batch.gpu is not None
    assert whole.gpu is not None
    assert batch.gpu.plan.sums == 1
    assert batch.gpu.plan.slots == 4
    assert whole.gpu.plan.sums == 0
    assert same_bits(first.out, again.out)
    assert relative_error(first, exact) <= 1e-6
    assert relative_error(uncut, exact) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_type_that_the_kernels_do_not_know_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="serve it on the CPU"):
        PagedBatch.of([], [], torch.zeros(1, 2, 1, 16, 16, dtype=dtype))


def test_pages_that_do_not_lie_one_after_the_other_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        PagedBatch.of([], [], torch.zeros(4, 2, 1, 16, 16)[::2])


def test_a_pool_of_more_values_than_32_bits_count() -> None:
    """4.3 GB of addresses, of which two pages are ever touched."""
    heads, page_tokens, head_dim = 1, 16, 64
    count = 2**31 // (2 * heads * page_tokens * head_dim) + 2
    pool = torch.empty((count, 2, heads, page_tokens, head_dim), dtype=torch.bfloat16)
    q, k, v = torch.randn(3, 20, head_dim, generator=torch.Generator().manual_seed(0)).to(pool.dtype)
    segment, far = Segment(0, 0, 18, 2, 18), np.array([count - 1, count - 2])
    batch = PagedBatch.of([segment], [far], pool)
    out, expected = torch.empty_like(q), torch.empty_like(q)
    paged.append(pool, batch, k, v)
    assert torch.equal(pool[-1, 0, 0], k[:16])
    assert torch.equal(pool[-2, 1, 0, :2], v[16:18])
    paged.attend(pool, batch, q, k, v, out)
    attention.attend(pool, far, q, k, v, segment, expected)
    torch.testing.assert_close(out, expected, rtol=0.05, atol=0.5)
