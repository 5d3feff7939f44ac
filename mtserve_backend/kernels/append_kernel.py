"""New keys and values into their pages on the GPU, for a whole batch. The reference is `attention.append`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mtserve_backend.kernels.plan import RUN_COLUMNS, Plan
from mtserve_backend.kernels.tuning import APPEND_WARPS, Tuning, block_dim

_RUN_COLUMNS = tl.constexpr(RUN_COLUMNS)


@triton.jit
def append_kernel(
    storage, k, v, page_tables, runs, k_stride, v_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr, RUN_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program (run of new rows, head)."""
    run = runs + tl.program_id(0) * _RUN_COLUMNS
    head = tl.program_id(1)
    first_row, rows, position, pages_at = tl.load(run), tl.load(run + 1), tl.load(run + 2), tl.load(run + 3)
    row = tl.arange(0, RUN_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (row < rows)[:, None] & (dims < HEAD_DIM)[None, :]
    at_row = (first_row + row).to(tl.int64)[:, None]
    columns = head * HEAD_DIM + dims[None, :]
    positions = position + row
    pages = tl.load(page_tables + pages_at + positions // PAGE_TOKENS, mask=row < rows, other=0)
    slots = pages.to(tl.int64) * (2 * HEADS * PAGE_TOKENS * HEAD_DIM)
    slots += (head * PAGE_TOKENS + positions % PAGE_TOKENS) * HEAD_DIM
    at = storage + slots[:, None] + dims[None, :]
    tl.store(at, tl.load(k + at_row * k_stride + columns, mask=inside), mask=inside)
    tl.store(at + HEADS * PAGE_TOKENS * HEAD_DIM, tl.load(v + at_row * v_stride + columns, mask=inside), mask=inside)


def append_constants(shape: torch.Size, tuning: Tuning) -> dict[str, int]:
    """What the kernel is compiled for, of pages of `shape` `[..., heads, page_tokens, head_dim]`."""
    heads, page_tokens, head_dim = shape[-3:]
    return {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "PAGE_TOKENS": page_tokens,
        "RUN_ROWS": tuning.run_rows,
        "BLOCK_DIM": block_dim(head_dim),
    }


def append(
    storage: torch.Tensor, plan: Plan, tables: torch.Tensor, tuning: Tuning, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Launch. `storage` contiguous `[pages, 2, heads, page_tokens, head_dim]`; `k`, `v` `[T, heads * head_dim]`."""
    if plan.runs:
        append_kernel[(plan.runs, storage.shape[2])](
            storage, k, v, tables, tables[plan.runs_at :], k.stride(0), v.stride(0),
            **append_constants(storage.shape, tuning), num_warps=APPEND_WARPS,
        )  # fmt: skip
