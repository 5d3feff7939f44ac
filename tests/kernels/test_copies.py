"""Page copies against fancy indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtserve_backend.kernels import copies

PAGES = 12
numbers = st.lists(st.integers(0, PAGES - 1), max_size=PAGES, unique=True).map(lambda n: np.array(n, dtype=np.int64))
# Runs of neighbours, as the pools hand them out, cut and joined.
runs = st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 4)), max_size=4).map(
    lambda pieces: np.array(
        list(dict.fromkeys(page for first, count in pieces for page in range(first, min(PAGES, first + count)))),
        dtype=np.int64,
    )
)
slots = numbers | runs
dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])


def filled(pages: int, dtype: torch.dtype, start: int = 1) -> torch.Tensor:
    """Every value different, as far as the type can tell."""
    return torch.arange(start, start + pages * 6).view(pages, 2, 3).to(dtype)


@given(slots)
def test_neighbours_cover_the_numbers_in_order_with_as_few_runs_as_can_be(pages: np.ndarray) -> None:
    found = copies.neighbours(pages)
    assert [page for _, first, count in found for page in range(first, first + count)] == pages.tolist()
    assert [index + i for index, _, count in found for i in range(count)] == list(range(len(pages)))
    assert all(pages[index] == first and count > 0 for index, first, count in found)
    breaks = sum(pages[i + 1] != pages[i] + 1 for i in range(len(pages) - 1))
    assert len(found) == (breaks + 1 if len(pages) else 0)


@settings(deadline=None)
@given(slots, dtypes)
def test_copy_pages(pages: np.ndarray, dtype: torch.dtype) -> None:
    target, source = filled(PAGES, dtype), filled(len(pages), dtype, start=100)
    expected = target.clone()
    expected[pages] = source
    copies.copy_pages(target, pages, source)
    assert torch.equal(target, expected)


@settings(deadline=None)
@given(st.permutations(range(PAGES)), st.integers(0, PAGES // 2), dtypes)
def test_scatter_pages(order: list[int], count: int, dtype: torch.dtype) -> None:
    staged, primary = np.array(order[:count], dtype=np.int64), np.array(order[count : 2 * count], dtype=np.int64)
    layer = filled(PAGES, dtype)
    expected = layer.clone()
    expected[primary] = layer[staged]
    copies.scatter_pages(layer, staged, primary)
    assert torch.equal(layer, expected)


@settings(deadline=None)
@given(slots, st.integers(1, 3), dtypes)
def test_gather_pages(pages: np.ndarray, count: int, dtype: torch.dtype) -> None:
    layers = torch.stack([filled(PAGES, dtype, start=1 + layer) for layer in range(count)])
    buffer = torch.zeros((count, len(pages), 2, 3), dtype=dtype)
    before = layers.clone()
    copies.gather_pages(buffer, layers, pages)
    assert torch.equal(buffer, layers[:, pages])
    assert torch.equal(layers, before)


def test_runs_of_neighbours_move_at_once() -> None:
    pages = np.array([4, 5, 6, 9, 2, 3], dtype=np.int64)
    assert copies.neighbours(pages) == [(0, 4, 3), (3, 9, 1), (4, 2, 2)]


def test_every_bit_is_copied() -> None:
    """NaN payloads and negative zeros too: a copy is of bytes."""
    source = torch.tensor([[float("nan"), -0.0, float("inf"), 1e-45]])
    target = torch.zeros(3, 4)
    copies.copy_pages(target, np.array([1]), source)
    assert torch.equal(target[1].view(torch.int32), source[0].view(torch.int32))


def test_sizes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        copies.copy(torch.zeros(4), torch.zeros(3))


def test_strided_memory_is_refused_rather_than_copied_into_a_temporary() -> None:
    with pytest.raises(RuntimeError, match="view"):
        copies.copy(torch.zeros(4, 4)[:, :2], torch.zeros(4, 2))
