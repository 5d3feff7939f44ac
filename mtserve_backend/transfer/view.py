"""The cache as a model sees it: one call a layer, which appends and attends. Where keys lie is decided here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mtserve_backend.kernels import attention
from mtserve_backend.kernels.layout import KVShape, PageNumbers, Segment
from mtserve_backend.transfer.onload import OnloadFailed, OnloadHandle
from mtserve_backend.transfer.streams import Stream, StreamBroken, WaitTimeout


@dataclass(frozen=True)
class Placement:
    """A segment and the pages of its history; None: nowhere, its keys live in scratch pages for one layer only."""

    segment: Segment
    pages: PageNumbers | None


class CacheView:
    """Attention over leased pages, for one batch. Implements `models.contract.Attention`.

    `device` is the pool `[layers, pages, 2, heads, page_tokens, head_dim]`; `handles` are the loads that layer l must
    wait for. The time spent waiting is in `waited_s`.
    """

    def __init__(
        self,
        device: torch.Tensor,
        kv: KVShape,
        placements: Sequence[Placement],
        handles: Sequence[OnloadHandle],
        compute: Stream,
    ) -> None:
        self._device = device
        self._kv = kv
        self._handles = handles
        self._compute = compute
        self.waited_s = 0.0
        self._placements: list[tuple[Segment, PageNumbers, bool]] = []
        self._scratch = self._place(placements)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.await_layer(layer)
        out = torch.empty((len(q), self._kv.heads * self._kv.head_dim), dtype=q.dtype, device=q.device)
        for segment, pages, in_scratch in self._placements:
            storage = self._scratch if in_scratch else self._device[layer]
            attention.append(storage, pages, k, v, segment)
            attention.attend(storage, pages, q, k, v, segment, out)
        return out

    def await_layer(self, layer: int) -> None:
        """Order what follows after the arrival of the layer's keys. Raises `OnloadFailed`."""
        late: list[OnloadHandle] = []
        begin = time.perf_counter()
        for handle in self._handles:
            try:
                if not handle.failed:
                    self._compute.wait(handle.layers[layer])
            except (WaitTimeout, StreamBroken):
                late.append(handle)
            else:
                if handle.failed:
                    late.append(handle)
        self.waited_s += time.perf_counter() - begin
        if late:
            raise OnloadFailed([handle.task for handle in late])

    def _place(self, placements: Sequence[Placement]) -> torch.Tensor:
        page_tokens = self._device.shape[4]
        scratch_pages = 0
        for placement in placements:
            pages, in_scratch = placement.pages, placement.pages is None
            if pages is None:
                count = -(-placement.segment.length // page_tokens)
                pages = np.arange(scratch_pages, scratch_pages + count)
                scratch_pages += count
            self._placements.append((placement.segment, pages, in_scratch))
        return torch.empty(
            (scratch_pages, 2, self._kv.heads, page_tokens, self._kv.head_dim),
            dtype=self._device.dtype,
            device=self._device.device,
        )
