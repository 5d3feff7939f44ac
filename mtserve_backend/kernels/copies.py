"""Bulk copies of whole pages: host chunk to device pages, device pages to device pages, pages to a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

from mtserve_backend.kernels import device
from mtserve_backend.kernels.layout import PageNumbers


def neighbours(slots: PageNumbers) -> list[tuple[int, int, int]]:
    """Runs of consecutive slot numbers as (index in `slots`, first slot, count): one copy each."""
    if not len(slots):
        return []
    gaps = slots[1:] - slots[:-1] != 1
    if not np.count_nonzero(gaps):
        return [(0, int(slots[0]), len(slots))]
    starts = np.concatenate(([0], np.nonzero(gaps)[0] + 1, [len(slots)]))
    return [(int(a), int(slots[a]), int(b - a)) for a, b in pairwise(starts)]


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """`target[...] = source`, both contiguous and alike, on the calling thread or the current CUDA stream.

    On the CPU this is one `memcpy` without the interpreter lock: torch's own copy would start a team of threads that
    competes with the compute stream's.
    """
    if target.device.type == "cpu" and source.device.type == "cpu":
        np.copyto(_bytes(target), _bytes(source))
    else:
        target.copy_(source, non_blocking=True)


def copy_pages(target: torch.Tensor, pages: PageNumbers, source: torch.Tensor) -> None:
    """`target[pages[i]] = source[i]` over the first dimension, neighbouring pages at once."""
    for index, page, count in neighbours(pages):
        copy(target[page : page + count], source[index : index + count])


def scatter_pages(layer: torch.Tensor, staged: PageNumbers, primary: PageNumbers) -> None:
    """`layer[primary[i]] = layer[staged[i]]`; the two sets of pages are disjoint. `[pages, 2, heads, ...]`."""
    if device.runs_kernels(layer.device):
        from mtserve_backend.kernels import copy_kernel

        copy_kernel.scatter(layer, *_uploaded(layer.device, staged, primary))
        return
    for index, page, count in neighbours(staged):
        copy_pages(layer, primary[index : index + count], layer[page : page + count])


def gather_pages(buffer: torch.Tensor, layers: torch.Tensor, pages: PageNumbers) -> None:
    """`buffer[l, i] = layers[l, pages[i]]`, both `[layers, pages, 2, heads, page_tokens, head_dim]` and contiguous."""
    if device.runs_kernels(layers.device):
        from mtserve_backend.kernels import copy_kernel

        copy_kernel.gather(buffer, layers, *_uploaded(layers.device, pages))
        return
    runs = neighbours(pages)
    for target, layer in zip(buffer, layers, strict=True):
        for index, page, count in runs:
            copy(target[index : index + count], layer[page : page + count])


def zero(pages: torch.Tensor, slots: PageNumbers, dim: int) -> None:
    """Overwrite slots of a pool, neighbouring ones at once, along its dimension `dim`."""
    for _, slot, count in neighbours(slots):
        pages.narrow(dim, slot, count).zero_()


def zero_all(buffer: torch.Tensor) -> None:
    """Overwrite a buffer."""
    buffer.zero_()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, to be read once the current stream has come so far; the tensor itself if it is there."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _uploaded(where: torch.device, *numbers: PageNumbers) -> Iterator[torch.Tensor]:
    """Page numbers as int32 tensors, all in one copy; each starts at a multiple of 16 bytes, as the kernels like it."""
    count = len(numbers[0])
    table = np.zeros((len(numbers), -(-count // 4) * 4), dtype=np.int32)
    table[:, :count] = numbers
    return (row[:count] for row in device.upload(table, where))


def _bytes(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    view: np.ndarray[tuple[int], np.dtype[np.uint8]] = tensor.view(-1).view(torch.uint8).numpy()
    return view
