"""Append and attend for a whole ragged batch: torch on the CPU, Triton-language kernels on a GPU, one face for both.

A `PagedBatch` is made once per slice of work and used in every layer. Where it was made for decides which of the two
runs; the kernels are imported only then, so a CPU server needs no `triton`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from mtserve_backend.kernels import attention, device
from mtserve_backend.kernels.layout import PageNumbers, Segment
from mtserve_backend.kernels.plan import Plan
from mtserve_backend.kernels.tuning import Tuning, tuning_for


@dataclass(frozen=True)
class _OnGpu:
    """What the kernels need of a batch. The tables are uploaded on first use, on the stream that uses them."""

    plan: Plan
    tuning: Tuning
    where: torch.device

    @cached_property
    def tables(self) -> torch.Tensor:
        return device.upload(self.plan.packed, self.where)


@dataclass(frozen=True)
class PagedBatch:
    """Segments whose rows lie in one `[T, heads * head_dim]` matrix, and the pages of each one's history.

    `pages[i]` holds at least `ceil(segments[i].length / page_tokens)` page numbers. Rows of the matrix that belong to
    no segment are neither read nor written.
    """

    segments: tuple[Segment, ...]
    pages: tuple[PageNumbers, ...]
    gpu: _OnGpu | None

    @classmethod
    def of(cls, segments: Sequence[Segment], pages: Sequence[PageNumbers], storage: torch.Tensor) -> PagedBatch:
        """For layers of the shape, type and device of `storage`, `[..., pages, 2, heads, page_tokens, head_dim]`.

        Raises `ValueError` if the kernels cannot work on such pages.
        """
        gpu = None
        if device.runs_kernels(storage.device):
            if not storage.is_contiguous():
                raise ValueError("the kernels address pages by number: the pool must be one contiguous tensor")
            heads, head_dim = storage.shape[-3], storage.shape[-1]
            tuning = tuning_for(storage.dtype, head_dim)
            plan = Plan.of(segments, pages, heads, tuning, device.programs(storage.device))
            gpu = _OnGpu(plan, tuning, storage.device)
        return cls(tuple(segments), tuple(pages), gpu)


def append(storage: torch.Tensor, batch: PagedBatch, k: torch.Tensor, v: torch.Tensor) -> None:
    """Write every segment's new rows of `k` and `v`, `[T, heads * head_dim]`, to its pages of one layer.

    `storage` is the layer, `[pages, 2, heads, page_tokens, head_dim]`, of the type of `k` and `v`.
    """
    if batch.gpu is None:
        for segment, pages in zip(batch.segments, batch.pages, strict=True):
            attention.append(storage, pages, k, v, segment)
        return
    from mtserve_backend.kernels import append_kernel

    append_kernel.append(storage, batch.gpu.plan, batch.gpu.tables, batch.gpu.tuning, k, v)


def attend(
    storage: torch.Tensor, batch: PagedBatch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor
) -> None:
    """Write `sum_j SiLU(q_i . k_j) v_j` to row i of `out`, for every row of every segment.

    All matrices are `[T, heads * head_dim]`, of the type of `storage`, which the new rows have been appended to. `k`
    and `v` are read only for the targets' view of themselves. The constant 1/N is the model's.
    """
    if batch.gpu is None:
        for segment, pages in zip(batch.segments, batch.pages, strict=True):
            attention.attend(storage, pages, q, k, v, segment, out)
        return
    from mtserve_backend.kernels import attention_kernel

    attention_kernel.attend(storage, batch.gpu.plan, batch.gpu.tables, batch.gpu.tuning, q, k, v, out)
