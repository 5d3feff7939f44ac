"""Tile sizes, warps and stages of the GPU kernels for a data type and head dimension.

Chosen on paper and by what the compiler reports (docs/kernels.md); no GPU has measured them yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# 32-bit words that a program of the copying kernels moves: 16 KB, so 64 bytes in flight for each of 256 threads.
COPY_WORDS = 4096
COPY_WARPS = 8
# Sums that one program adds up over a tile's pieces, four for each thread: few, because the pieces of one tile must be
# added by many processors.
SUM_VALUES = 512
SUM_WARPS = 4
APPEND_WARPS = 4


@dataclass(frozen=True)
class Tuning:
    """One configuration of the kernels.

    `tile_rows`: query rows of a program; `key_block`: keys per step; `dim_step`: of the head dimension at a time in the
    product with the keys; `run_rows`: new rows appended by a program; `least_piece`: keys below which a tile is not
    cut, since a piece's float32 sums would cost as much as its keys.
    """

    tile_rows: int
    key_block: int
    dim_step: int
    warps: int
    stages: int
    run_rows: int = 16
    least_piece: int = 128


def block_dim(head_dim: int) -> int:
    """The power of two that the kernels compute `head_dim` in; what is beyond is masked. A product needs 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def tuning_for(dtype: torch.dtype, head_dim: int) -> Tuning:
    """The configuration for keys of `dtype` and `head_dim`. Raises `ValueError` for what the kernels cannot do."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16) or not 1 <= head_dim <= 256:
        raise ValueError(
            f"the GPU kernels take float32, bfloat16 and float16 with head dimensions up to 256, not {dtype} with "
            f"{head_dim}: convert the model, or serve it on the CPU"
        )
    dim = block_dim(head_dim)
    if dtype is torch.float32:
        # No tensor cores at full precision: the operands of a product are in registers as well as its sums. So the
        # tiles are small, and the head dimension is taken in steps (the queries are read again: from the first cache).
        if dim > 128:
            return Tuning(tile_rows=32, key_block=16, dim_step=16, warps=8, stages=2)
        return Tuning(tile_rows=32, key_block=32, dim_step=min(dim, 32), warps=8 if dim > 32 else 4, stages=2)
    if dim > 128:
        # 64 x 256 sums are 64 registers a thread with eight warps; with four they would fill half of them.
        return Tuning(tile_rows=64, key_block=32, dim_step=dim, warps=8, stages=3)
    # One warp group's product has 64 rows. Two blocks of keys and values are on their way while a third is computed;
    # with the queries that is 80 KB at 128, so that two programs share a processor.
    return Tuning(tile_rows=64, key_block=64, dim_step=dim, warps=4, stages=3)
