"""Pages to pages on the GPU, all in one launch: scatter and gather. The references are in `copies`.

Pages are moved as 32-bit words, so one compiled kernel serves every data type and every bit arrives as it was.
"""

from __future__ import annotations

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
    if TO_PAGES:
        target_page = layer * target_pages + tl.load(target_numbers + index)
    else:
        target_page = layer * target_pages + index
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
    words = _words(storage)
    layers, pages, _ = words.shape
    _launch(words, words, primary, staged, len(staged), layers, pages, pages, True)


def gather(buffer: torch.Tensor, storage: torch.Tensor, pages: torch.Tensor) -> None:
    """`buffer[..., i] = storage[..., pages[i]]`, in one layer or in all; shapes as in `scatter`."""
    target, source = _words(buffer), _words(storage)
    _launch(target, source, pages, pages, len(pages), source.shape[0], target.shape[1], source.shape[1], False)


def _launch(
    target: torch.Tensor, source: torch.Tensor, target_numbers: torch.Tensor, source_numbers: torch.Tensor,
    count: int, layers: int, target_pages: int, source_pages: int, to_pages: bool,
) -> None:  # fmt: skip
    page_words = source.shape[2]
    if count and layers:
        copy_pages_kernel[(count, triton.cdiv(page_words, COPY_WORDS), layers)](
            target, source, target_numbers, source_numbers, target_pages, source_pages,
            PAGE_WORDS=page_words, BLOCK=COPY_WORDS, TO_PAGES=to_pages, num_warps=COPY_WARPS,
        )  # fmt: skip


def _words(pages: torch.Tensor) -> torch.Tensor:
    """`[layers, pages, words of a page]` int32. A page holds keys and values, so its bytes are a multiple of four."""
    *layers, count, two, heads, page_tokens, head_dim = pages.shape
    page_words = two * heads * page_tokens * head_dim * pages.element_size() // 4
    return pages.view(-1).view(torch.int32).view(layers[0] if layers else 1, count, page_words)
