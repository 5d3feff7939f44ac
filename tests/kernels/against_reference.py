"""Append and attend by the kernels, on any device, held against the torch reference and against float64."""

from __future__ import annotations

import torch

from mtserve_backend.kernels import attention, device, paged
from mtserve_backend.kernels.paged import PagedBatch
from tests.kernels.ragged import UNTOUCHED, Ragged, Scene, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAGE_TOKENS = (1, 3, 16, 32, 40)
CPU = torch.device("cpu")


def by_reference(scene: Scene) -> None:
    for segment, pages in zip(scene.segments, scene.pages, strict=True):
        attention.append(scene.storage, pages, scene.k, scene.v, segment)
    for segment, pages in zip(scene.segments, scene.pages, strict=True):
        attention.attend(scene.storage, pages, scene.q, scene.k, scene.v, segment, scene.out)


def by_kernels(scene: Scene) -> PagedBatch:
    batch = PagedBatch.of(scene.segments, scene.pages, scene.storage)
    assert (batch.gpu is not None) == device.runs_kernels(scene.storage.device)
    paged.append(scene.storage, batch, scene.k, scene.v)
    appended = scene.guarded.clone()
    paged.attend(scene.storage, batch, scene.q, scene.k, scene.v, scene.out)
    assert same_bits(scene.guarded, appended), "attend wrote to the pages"
    return batch


def relative_error(scene: Scene, exact: Scene) -> float:
    difference, largest = (scene.computed - exact.computed).abs(), exact.computed.abs()
    return float(difference.max() / largest.max()) if largest.numel() and largest.max() else float(difference.sum())


def check(ragged: Ragged, dtype: torch.dtype, where: torch.device = CPU) -> None:
    """Raises `AssertionError` if the kernels are wrong by more than their type is, or touch what is not theirs."""
    reference = Scene(ragged, dtype)
    exact, on_device = reference.copy(torch.float64), reference.copy(dtype, where)
    by_reference(reference)
    by_reference(exact)
    by_kernels(on_device)
    scene = on_device.copy(dtype, CPU)
    assert same_bits(scene.guarded, reference.guarded), "append differs, or wrote outside its slots"
    error = relative_error(scene, exact)
    # In a shorter type the result itself is rounded once more, by up to half of epsilon.
    allowed = 1e-5 if dtype is torch.float32 else 2 * relative_error(reference, exact) + torch.finfo(dtype).eps / 2
    assert error <= allowed
    written = torch.zeros(len(scene.guarded_out), dtype=torch.bool)
    for segment in scene.segments:
        written[1 + segment.first_row : 1 + segment.first_row + segment.rows] = True
    assert (scene.guarded_out[~written] == UNTOUCHED).all(), "rows of no segment were written"
