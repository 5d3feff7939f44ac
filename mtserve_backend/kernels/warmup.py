"""Compile every kernel that a model's requests can need, before the first of them.

A kernel is compiled once for each data type, head count, head dimension and page size, which are one each in a server.
Nothing that changes from request to request (lengths, batch sizes, page numbers, how a batch is cut) is compiled in:
tables start at multiples of 16 bytes, counts are in the tables or in the grid, and strides are multiples of 16 where
`heads * head_dim` is. So there are five: append, attend, sum, scatter and gather.
"""

from __future__ import annotations

import numpy as np
import torch

from mtserve_backend.kernels import copies, device, paged
from mtserve_backend.kernels.layout import KVShape, Segment
from mtserve_backend.kernels.paged import PagedBatch
from mtserve_backend.kernels.tuning import tuning_for


def warm_up(kv: KVShape, page_tokens: int, dtype: torch.dtype, where: torch.device) -> None:
    """Run each kernel once on memory of its own, on the current stream, and wait. Nothing to do where none runs.

    Raises `ValueError` for a data type or head dimension that the kernels do not take.
    """
    if not device.runs_kernels(where):
        return
    # Enough keys for one row to be cut into pieces, which the sum is for.
    cached = 2 * tuning_for(dtype, kv.head_dim).least_piece
    pages = np.arange(-(-(cached + 1) // page_tokens))
    pool = torch.zeros((1, len(pages) + 1, 2, kv.heads, page_tokens, kv.head_dim), dtype=dtype, device=where)
    width = kv.heads * kv.head_dim
    # As models make them: parts of one product's rows.
    q, k, v = torch.split(torch.zeros((2, 3 * width), dtype=dtype, device=where), width, dim=1)
    out = torch.empty((2, width), dtype=dtype, device=where)
    batch = PagedBatch.of([Segment(0, cached, 1, 1, cached + 1)], [pages], pool)
    paged.append(pool[0], batch, k, v)
    paged.attend(pool[0], batch, q, k, v, out)
    copies.scatter_pages(pool[0], pages[:1], pages[-1:] + 1)
    copies.gather_pages(torch.empty_like(pool[:, :1]), pool, pages[:1])
    if where.type == "cuda":
        torch.cuda.synchronize(where)
