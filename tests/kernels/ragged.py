"""Random ragged batches over shuffled pages. What must not be read is NaN; what must not be written, a known value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from mtserve_backend.kernels.layout import PageNumbers, Segment

UNTOUCHED = 7.0
# A page that no pool has: following it ends the process.
NOWHERE = 2**31 - 1


@dataclass(frozen=True)
class Part:
    """One segment: its cached, new and target rows, how much of its history the targets do not see, a gap before it."""

    cached: int
    new: int
    targets: int
    hidden: int = 0
    gap: int = 0


@dataclass(frozen=True)
class Ragged:
    parts: tuple[Part, ...]
    heads: int
    head_dim: int
    page_tokens: int
    seed: int = 0
    spare: int = 2  # pages of nobody

    @property
    def segments(self) -> tuple[Segment, ...]:
        segments, row = [], 0
        for part in self.parts:
            row += part.gap
            visible = max(0, part.cached + part.new - part.hidden)
            segments.append(Segment(row, part.cached, part.new, part.targets, visible))
            row += part.new + part.targets
        return tuple(segments)

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


def batches(longest: int, widest: int, page_tokens: tuple[int, ...]) -> st.SearchStrategy[Ragged]:
    part = st.builds(
        Part,
        cached=st.integers(0, longest),
        new=st.integers(0, longest // 2),
        targets=st.integers(0, longest // 4),
        hidden=st.integers(0, 2),
        gap=st.integers(0, 2),
    )
    return st.builds(
        Ragged,
        parts=st.lists(part, max_size=4).map(tuple),
        heads=st.integers(1, 3),
        head_dim=st.integers(1, widest),
        page_tokens=st.sampled_from(page_tokens),
        seed=st.integers(0, 2**16),
        spare=st.integers(0, 3),
    )


class Scene:
    """The tensors of a batch, in `dtype`, with guards around them. Rows of no segment are NaN."""

    def __init__(self, ragged: Ragged, dtype: torch.dtype) -> None:
        self.segments = ragged.segments
        rng, order = torch.Generator().manual_seed(ragged.seed), np.random.default_rng(ragged.seed)
        rows = self.segments[-1].first_row + self.segments[-1].rows + 1 if self.segments else 1
        # As a model makes them: parts of the rows of one product.
        product = torch.full((rows, 4 * ragged.width), torch.nan)
        for segment in self.segments:
            own = slice(segment.first_row, segment.first_row + segment.rows)
            product[own] = torch.randn(segment.rows, 4 * ragged.width, generator=rng)
        _, self.v, self.q, self.k = product.to(dtype).split(ragged.width, dim=1)
        counts = [-(-segment.length // ragged.page_tokens) for segment in self.segments]
        total = sum(counts) + ragged.spare
        numbers = np.split(order.permutation(total).astype(np.int64), np.cumsum(counts))[:-1]
        self.pages: list[PageNumbers] = [np.append(own, NOWHERE) for own in numbers]
        shape = (total + 2, 2, ragged.heads, ragged.page_tokens, ragged.head_dim)
        self.guarded = torch.full(shape, torch.nan, dtype=dtype)
        self.storage = self.guarded[1:-1]
        for segment, own in zip(self.segments, numbers, strict=True):
            for position in range(segment.cached):
                page, offset = divmod(position, ragged.page_tokens)
                token = torch.randn(2, ragged.heads, ragged.head_dim, generator=rng)
                self.storage[int(own[page]), :, :, offset] = token.to(dtype)
        self.guarded_out = torch.full((rows + 2, ragged.width), UNTOUCHED, dtype=dtype)
        self.out = self.guarded_out[1:-1]

    def copy(self, dtype: torch.dtype, where: torch.device | None = None) -> Scene:
        """The same, with the same values in another type, or on another device."""
        other = object.__new__(Scene)
        other.segments, other.pages = self.segments, self.pages
        for name in ("q", "k", "v", "guarded", "guarded_out"):
            setattr(other, name, getattr(self, name).to(where, dtype, copy=True))
        other.storage, other.out = other.guarded[1:-1], other.guarded_out[1:-1]
        return other

    @property
    def computed(self) -> torch.Tensor:
        """The rows of all segments, as float64."""
        rows = [np.arange(s.first_row, s.first_row + s.rows) for s in self.segments]
        return self.out[np.concatenate([np.zeros(0, dtype=np.int64), *rows])].double()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike to the last bit: NaN equals itself here, and 0 is not -0."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))
