"""Scatter and gather as kernels: every bit arrives, and nothing beside its target is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtserve_backend.kernels import copies, copy_kernel
from tests.kernels.ragged import same_bits
from tests.kernels.strategies import PAGES, any_bits, dtypes, layer_counts, orders, shapes


@settings(max_examples=25)
@given(orders, st.integers(0, PAGES // 2), layer_counts, shapes, dtypes)
def test_scatter_in_one_layer_and_in_all(
    order: np.ndarray, count: int, layers: int, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    staged, primary = order[:count], order[count : 2 * count]
    one, every = any_bits(layers, PAGES, shape, dtype, seed=1), any_bits(layers, PAGES, shape, dtype, seed=1)
    expected = every.clone()
    expected[:, primary] = every[:, staged]
    numbers = [torch.from_numpy(own.astype(np.int32)) for own in (staged, primary)]
    copy_kernel.scatter(every, *numbers)
    assert same_bits(every, expected)
    copies.scatter_pages(one[-1], staged, primary)
    assert same_bits(one[-1], expected[-1])
    assert same_bits(one[:-1], any_bits(layers, PAGES, shape, dtype, seed=1)[:-1])


@settings(max_examples=25)
@given(orders, st.integers(0, PAGES), layer_counts, shapes, dtypes)
def test_gather(order: np.ndarray, count: int, layers: int, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    source = any_bits(layers, PAGES, shape, dtype, seed=2)
    guarded = any_bits(layers + 2, count, shape, dtype, seed=3)
    guards, before = guarded[[0, -1]].clone(), source.clone()
    copies.gather_pages(guarded[1:-1], source, order[:count])
    assert same_bits(guarded[1:-1], source[:, order[:count]])
    assert same_bits(guarded[[0, -1]], guards)
    assert same_bits(source, before)


@pytest.mark.parametrize("page_tokens", [32, 33])
def test_pages_of_several_blocks(page_tokens: int) -> None:
    """2 x 4 x 32 x 64 float32 are four blocks of a program each; a token more is a fifth that is not full."""
    before = any_bits(2, 3, (4, page_tokens, 64), torch.float32, seed=4)
    moved = before.clone()
    copies.scatter_pages(moved[1], np.array([2]), np.array([0]))
    assert same_bits(moved[1, 0], before[1, 2])
    assert same_bits(moved[1, 1:], before[1, 1:])
    assert same_bits(moved[0], before[0])
