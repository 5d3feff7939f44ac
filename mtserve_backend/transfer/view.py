"""The cache as a model sees it: one call a layer, which appends and attends. Where keys lie is decided here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from mtserve_backend.kernels import paged
from mtserve_backend.kernels.layout import KVShape, PageNumbers, Segment
from mtserve_backend.kernels.paged import PagedBatch
from mtserve_backend.transfer.onload import OnloadFailed, OnloadHandle
from mtserve_backend.transfer.streams import Stream, StreamBroken, WaitTimeout


@dataclass(frozen=True)
class Placement:
    """A segment and the pages of its history; None: nowhere, its keys live in scratch pages for one layer only."""

    segment: Segment
    pages: PageNumbers | None


@dataclass(frozen=True)
class _Place:
    """A segment whose pages are known; in the scratch pages or in the pool."""

    segment: Segment
    pages: PageNumbers
    in_scratch: bool


@dataclass(frozen=True)
class _Span:
    """What one call of `Attend` computes: the batch whose keys are in the pool, and the one in the scratch pages."""

    pooled: PagedBatch | None
    scratch: PagedBatch | None


class CacheView:
    """Attention over leased pages, for one slice of a wave. Implements `models.contract.Attention`.

    `device` is the pool `[layers, pages, 2, heads, page_tokens, head_dim]`; `handles` are the loads that layer l must
    wait for. The time spent waiting is in `waited_s`.

    Keys that are kept nowhere live in scratch pages of one layer, so their rows cannot be cut into slices that run one
    after the other through all layers. They are cut inside each layer instead, into spans of at most `span_rows`.
    """

    def __init__(
        self,
        device: torch.Tensor,
        kv: KVShape,
        placements: Sequence[Placement],
        handles: Sequence[OnloadHandle],
        compute: Stream,
        span_rows: int,
    ) -> None:
        self.waited_s = 0.0
        self._device = device
        self._kv = kv
        self._handles = handles
        self._compute = compute
        places, self._scratch_pages = self._place(placements)
        self._spans = [(rows, partial(self._attend, self._span(inside))) for rows, inside in _cut(places, span_rows)]

    def spans(self) -> Sequence[tuple[slice, Callable[..., torch.Tensor]]]:
        return self._spans

    def await_layer(self, layer: int) -> None:
        """Order what follows after the arrival of the layer's keys. Raises `OnloadFailed`."""
        if not self._handles:
            return
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

    def _attend(self, span: _Span, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.await_layer(layer)
        out = torch.empty((len(q), self._kv.heads * self._kv.head_dim), dtype=q.dtype, device=q.device)
        if span.pooled is not None:
            _append_and_attend(self._device[layer], span.pooled, q, k, v, out)
        if span.scratch is not None:
            _append_and_attend(self._scratch, span.scratch, q, k, v, out)
        return out

    def _span(self, places: Sequence[_Place]) -> _Span:
        def batch(in_scratch: bool) -> PagedBatch | None:
            inside = [place for place in places if place.in_scratch is in_scratch]
            if not inside:
                return None
            return PagedBatch.of([place.segment for place in inside], [place.pages for place in inside], self._device)

        return _Span(batch(in_scratch=False), batch(in_scratch=True))

    @cached_property
    def _scratch(self) -> torch.Tensor:
        """Made by the compute stream, which is the one that uses it: torch's GPU memory belongs to a stream."""
        page_tokens = self._device.shape[4]
        shape = (self._scratch_pages, 2, self._kv.heads, page_tokens, self._kv.head_dim)
        return torch.empty(shape, dtype=self._device.dtype, device=self._device.device)

    def _place(self, placements: Sequence[Placement]) -> tuple[list[_Place], int]:
        """The places, and how many scratch pages they need."""
        page_tokens = self._device.shape[4]
        places: list[_Place] = []
        scratch_pages = 0
        for placement in placements:
            pages, in_scratch = placement.pages, placement.pages is None
            if pages is None:
                count = -(-placement.segment.length // page_tokens)
                pages = np.arange(scratch_pages, scratch_pages + count)
                scratch_pages += count
            places.append(_Place(placement.segment, pages, in_scratch))
        return places, scratch_pages


def _append_and_attend(
    storage: torch.Tensor, batch: PagedBatch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor
) -> None:
    paged.append(storage, batch, k, v)
    paged.attend(storage, batch, q, k, v, out)


def _cut(places: Sequence[_Place], span_rows: int) -> list[tuple[slice, list[_Place]]]:
    """All places as one span, or, if a place is longer than `span_rows` by itself, that place in several."""
    if len(places) != 1 or places[0].segment.rows <= span_rows:
        return [(slice(None), list(places))]
    (place,) = places
    spans: list[tuple[slice, list[_Place]]] = []
    for start in range(0, place.segment.rows, span_rows):
        stop = min(start + span_rows, place.segment.rows)
        segment = place.segment.part(start, stop, first_row=0)
        spans.append((slice(start, stop), [_Place(segment, place.pages, place.in_scratch)]))
    return spans
