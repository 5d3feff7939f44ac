"""Paged HSTU attention on the GPU: `sum_j SiLU(q_i . k_j) v_j` for a plan's pieces, and the sum over pieces.

The reference is `attention.attend`. There is no softmax, so the sums over two ranges of keys simply add: a long history
is cut among processors and the parts are added in a fixed order, which makes results repeatable bit by bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mtserve_backend.kernels.plan import PIECE_COLUMNS, SUM_COLUMNS, Plan
from mtserve_backend.kernels.tuning import SUM_VALUES, SUM_WARPS, Tuning, block_dim

_PIECE_COLUMNS = tl.constexpr(PIECE_COLUMNS)
_SUM_COLUMNS = tl.constexpr(SUM_COLUMNS)


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _rows(at, dims, there, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MASKED: tl.constexpr):
    """`[rows, dims]` from the addresses of rows. A mask that hides nothing costs registers all the same."""
    at = at[:, None] + dims[None, :]
    if MASKED:
        block = tl.load(at, mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM == BLOCK_DIM:
        block = tl.load(at)
    else:
        block = tl.load(at, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    return block


@triton.jit
def _add_keys(
    acc, queries, q_rows, row_there, limits, layer_head, page_table, start, end,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr, KEY_BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr, DIM_STEP: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to `acc`. Not masked: all of them are there, and all rows see them."""
    positions = start + tl.arange(0, KEY_BLOCK)
    there = positions < end
    if MASKED:
        pages = tl.load(page_table + positions // PAGE_TOKENS, mask=there, other=0)
    else:
        pages = tl.load(page_table + positions // PAGE_TOKENS)
    # A pool has more than 2^31 values.
    keys_at = layer_head + pages.to(tl.int64) * (2 * HEADS * PAGE_TOKENS * HEAD_DIM)
    keys_at += positions % PAGE_TOKENS * HEAD_DIM
    if DIM_STEP == BLOCK_DIM:
        keys = _rows(keys_at, tl.arange(0, BLOCK_DIM), there, HEAD_DIM, BLOCK_DIM, MASKED)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    else:
        scores = tl.zeros((queries.shape[0], KEY_BLOCK), dtype=tl.float32)
        for first in tl.static_range(0, BLOCK_DIM, DIM_STEP):
            dims = first + tl.arange(0, DIM_STEP)
            part = _rows(q_rows, dims, row_there, HEAD_DIM, BLOCK_DIM, True)
            keys = _rows(keys_at, dims, there, HEAD_DIM, BLOCK_DIM, MASKED)
            scores = tl.dot(part, tl.trans(keys), scores, input_precision=PRECISION)
    weights = _silu(scores)
    if MASKED:
        weights = tl.where(positions[None, :] < limits[:, None], weights, 0.0)
    values_at = keys_at + HEADS * PAGE_TOKENS * HEAD_DIM
    values = _rows(values_at, tl.arange(0, BLOCK_DIM), there, HEAD_DIM, BLOCK_DIM, MASKED)
    return tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)


@triton.jit
def attend_kernel(
    q, k, v, out, partial, storage, page_tables, pieces, q_stride, k_stride, v_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr, TILE_ROWS: tl.constexpr,
    KEY_BLOCK: tl.constexpr, BLOCK_DIM: tl.constexpr, DIM_STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (piece, head). `partial` float32 `[slots, TILE_ROWS, HEADS * HEAD_DIM]`."""
    piece = pieces + tl.program_id(0) * _PIECE_COLUMNS
    head = tl.program_id(1)
    first_row, rows, new_rows = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    first_limit, visible, page_table = tl.load(piece + 3), tl.load(piece + 4), page_tables + tl.load(piece + 5)
    begin, full_end, end = tl.load(piece + 6), tl.load(piece + 7), tl.load(piece + 8)
    slot = tl.load(piece + 9)

    row = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (row < rows)[:, None] & (dims < HEAD_DIM)[None, :]
    at_row = (first_row + row).to(tl.int64)
    columns = head * HEAD_DIM + dims[None, :]
    q_rows = q + at_row * q_stride + head * HEAD_DIM
    queries = _rows(q_rows, dims, row < rows, HEAD_DIM, BLOCK_DIM, True)
    limits = tl.where(row < new_rows, first_limit + row, visible)

    acc = tl.zeros((TILE_ROWS, BLOCK_DIM), dtype=tl.float32)
    layer_head = storage + head * (PAGE_TOKENS * HEAD_DIM)
    whole_end = begin + (full_end - begin) // KEY_BLOCK * KEY_BLOCK
    for start in tl.range(begin, whole_end, KEY_BLOCK):
        acc = _add_keys(
            acc, queries, q_rows, row < rows, limits, layer_head, page_table, start, end,
            HEADS, HEAD_DIM, PAGE_TOKENS, KEY_BLOCK, BLOCK_DIM, DIM_STEP, PRECISION, False,
        )  # fmt: skip
    # The diagonal and the end: few blocks, so they are not worth the registers and the memory of a pipeline.
    for start in tl.range(whole_end, end, KEY_BLOCK, num_stages=1):
        acc = _add_keys(
            acc, queries, q_rows, row < rows, limits, layer_head, page_table, start, end,
            HEADS, HEAD_DIM, PAGE_TOKENS, KEY_BLOCK, BLOCK_DIM, DIM_STEP, PRECISION, True,
        )  # fmt: skip

    # A target sees itself, once: with its first keys. Its key and value are in no page.
    if (begin == 0) & (new_rows < rows):
        own = (row >= new_rows) & (row < rows)
        own_keys = _rows(k + at_row * k_stride + head * HEAD_DIM, dims, own, HEAD_DIM, BLOCK_DIM, True).to(tl.float32)
        again = _rows(q_rows, dims, own, HEAD_DIM, BLOCK_DIM, True).to(tl.float32)
        weights = _silu(tl.sum(again * own_keys, axis=1))
        own_values = _rows(v + at_row * v_stride + head * HEAD_DIM, dims, own, HEAD_DIM, BLOCK_DIM, True)
        acc += weights[:, None] * own_values.to(tl.float32)

    if slot < 0:
        at = out + (at_row * (HEADS * HEAD_DIM))[:, None] + columns
        tl.store(at, acc.to(out.dtype.element_ty), mask=inside)
    else:
        part = (slot.to(tl.int64) * TILE_ROWS + row) * (HEADS * HEAD_DIM)
        tl.store(partial + part[:, None] + columns, acc, mask=inside)


@triton.jit
def sum_kernel(
    partial, out, sums, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_ROWS: tl.constexpr,
    SUM_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """Program (cut tile, group of its rows, head): adds the tile's pieces, in order."""
    tile = sums + tl.program_id(0) * _SUM_COLUMNS
    first_row, rows, first_slot, slots = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    row = tl.program_id(1) * SUM_ROWS + tl.arange(0, SUM_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    inside = (row < rows)[:, None] & (dims < HEAD_DIM)[None, :]
    columns = tl.program_id(2) * HEAD_DIM + dims[None, :]
    at = partial + (first_slot.to(tl.int64) * TILE_ROWS + row[:, None]) * (HEADS * HEAD_DIM) + columns
    acc = tl.zeros((SUM_ROWS, BLOCK_DIM), dtype=tl.float32)
    # Four loads in flight: the sum itself waits for each.
    for _ in tl.range(0, slots // 4):
        for ahead in tl.static_range(4):
            acc += tl.load(at + ahead * (TILE_ROWS * HEADS * HEAD_DIM), mask=inside, other=0.0)
        at += 4 * TILE_ROWS * HEADS * HEAD_DIM
    for _ in tl.range(0, slots % 4):
        acc += tl.load(at, mask=inside, other=0.0)
        at += TILE_ROWS * HEADS * HEAD_DIM
    at_row = (first_row + row).to(tl.int64)[:, None]
    tl.store(out + at_row * (HEADS * HEAD_DIM) + columns, acc.to(out.dtype.element_ty), mask=inside)


def attend_constants(shape: torch.Size, dtype: torch.dtype, tuning: Tuning) -> dict[str, int | str]:
    """What `attend_kernel` is compiled for, of pages of `shape` `[..., heads, page_tokens, head_dim]`."""
    heads, page_tokens, head_dim = shape[-3:]
    return {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "PAGE_TOKENS": page_tokens,
        "TILE_ROWS": tuning.tile_rows,
        "KEY_BLOCK": tuning.key_block,
        "BLOCK_DIM": block_dim(head_dim),
        "DIM_STEP": tuning.dim_step,
        "PRECISION": "ieee" if dtype is torch.float32 else "tf32",  # the second means nothing to shorter types
    }


def sum_constants(shape: torch.Size, tuning: Tuning) -> dict[str, int]:
    """What `sum_kernel` is compiled for."""
    heads, _, head_dim = shape[-3:]
    return {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "TILE_ROWS": tuning.tile_rows,
        "SUM_ROWS": SUM_VALUES // block_dim(head_dim),
        "BLOCK_DIM": block_dim(head_dim),
    }


def attend(
    storage: torch.Tensor, plan: Plan, tables: torch.Tensor, tuning: Tuning,
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
) -> None:  # fmt: skip
    """Launch. `storage` contiguous `[pages, 2, heads, page_tokens, head_dim]`, `tables` the plan's, uploaded.

    `q`, `k`, `v` are `[T, heads * head_dim]` with rows of any stride, `out` is contiguous.
    """
    if not plan.pieces:
        return
    heads, _, head_dim = storage.shape[-3:]
    sums = max(1, plan.slots * tuning.tile_rows * heads * head_dim)
    partial = torch.empty(sums, dtype=torch.float32, device=q.device)
    attend_kernel[(plan.pieces, heads)](
        q, k, v, out, partial, storage, tables, tables[plan.pieces_at :], q.stride(0), k.stride(0), v.stride(0),
        **attend_constants(storage.shape, storage.dtype, tuning), num_warps=tuning.warps, num_stages=tuning.stages,
    )  # fmt: skip
    if plan.sums:
        constants = sum_constants(storage.shape, tuning)
        sum_kernel[(plan.sums, triton.cdiv(tuning.tile_rows, constants["SUM_ROWS"]), heads)](
            partial, out, tables[plan.sums_at :], **constants, num_warps=SUM_WARPS
        )
