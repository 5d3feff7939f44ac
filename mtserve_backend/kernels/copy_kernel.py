"""Pages to pages on the GPU, all in one launch: scatter and gather. The references are in `copies`.

Pages are moved as 32-bit words, so one compiled kernel serves every data type and every bit arrives as it was.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from mtserve_backend.kernels.tuning import COPY_WARPS, COPY_WORDS


@triton.jit(do_not_specialize=["source_pages", "target_pages"])
def copy_pages_kernel(
    target, source, target_numbers, source_numbers, target_pages, source_pages,
    PAGE_WORDS: tl.constexpr, BLOCK: tl.constexpr, TO_PAGES: tl.constexpr,
):  # fmt: skip
    """Program (page, block of it, layer): `target[l, target_numbers[i]] = source[l, source_numbers[i]]`.

    Not `TO_PAGES`: the target's page is `i`. `target_pages` and `source_pages` are the pages in a layer.
    """
    index, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    source_page = layer * source_pages + tl.load(source_numbers + index)
    target_page = layer * target_pages + (tl.load(target_numbers + index) if TO_PAGES else index)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = words < PAGE_WORDS
    tl.store(
        target + target_page * PAGE_WORDS + words,
        tl.load(source + source_page * PAGE_WORDS + words, mask=inside),
        mask=inside,
    )


def scatter(storage: torch.Tensor, staged: torch.Tensor, primary: torch.Tensor) -> None:
    """`storage[..., primary[i]] = storage[..., staged[i]]`, in one layer or in all; the two sets are disjoint.

    `storage` is contiguous, `[pages, 2, heads, page_tokens, head_dim]` or `[layers, pages, ...]`; the numbers are int32
    on the same device.
    """
    _launch(storage, storage, primary, staged, to_pages=True)


def gather(buffer: torch.Tensor, storage: torch.Tensor, pages: torch.Tensor) -> None:
    """`buffer[..., i] = storage[..., pages[i]]`, in one layer or in all; shapes as in `scatter`."""
    _launch(buffer, storage, pages, pages, to_pages=False)


def copy_constants(shape: torch.Size, value_bytes: int, to_pages: bool) -> dict[str, int | bool]:
    """What the kernel is compiled for, of pages of `shape` `[..., 2, heads, page_tokens, head_dim]`."""
    return {"PAGE_WORDS": math.prod(shape[-4:]) * value_bytes // 4, "BLOCK": COPY_WORDS, "TO_PAGES": to_pages}


def _launch(
    target: torch.Tensor, source: torch.Tensor, target_numbers: torch.Tensor, source_numbers: torch.Tensor,
    to_pages: bool,
) -> None:  # fmt: skip
    constants = copy_constants(source.shape, source.element_size(), to_pages)
    layers = source.shape[0] if source.dim() == 6 else 1
    if len(source_numbers) and layers:
        copy_pages_kernel[(len(source_numbers), triton.cdiv(constants["PAGE_WORDS"], COPY_WORDS), layers)](
            _words(target), _words(source), target_numbers, source_numbers, target.shape[-5], source.shape[-5],
            **constants, num_warps=COPY_WARPS,
        )  # fmt: skip


def _words(pages: torch.Tensor) -> torch.Tensor:
    """As 32-bit words. A page holds keys and values, so its bytes are a multiple of four."""
    return pages.view(-1).view(torch.int32)
