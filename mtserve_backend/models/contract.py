"""What a model declares, what it is given, and what the engine may therefore cache.

A model sees a batch as `Rows` (ragged, concatenated) and its keys and values through an `Attention`. It never learns
where a key lives. The engine derives from the model's `Declaration` whether a user's state may be kept at all: a state
is reused only if row i of every layer depends on nothing that comes later and on nothing that changes between visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

import torch

from mtserve_backend.kernels.layout import KVShape, Segment


class Reuse(Enum):
    """What the engine does with a model's keys and values between visits."""

    EXACT = "cached exactly"
    NEVER = "recomputed on every visit"


@dataclass(frozen=True)
class Declaration:
    """What a row of the model depends on. Source: docs/architecture.md, "When a state may be reused"."""

    mask: Literal["causal", "bidirectional"]
    positions: Literal["start", "end"]
    attention_scale: Literal["constant", "batch"]

    def reuse(self) -> tuple[Reuse, str]:
        """The policy and the reason, for the start-up log."""
        if self.mask != "causal":
            return Reuse.NEVER, "its rows attend to later tokens"
        if self.positions != "start":
            return Reuse.NEVER, "its positions are counted from the end and move with each new token"
        if self.attention_scale != "constant":
            return Reuse.NEVER, "its attention is scaled by the batch it happens to be in"
        return Reuse.EXACT, "causal mask, start-anchored positions, constant attention scale"


@dataclass(frozen=True)
class Window:
    """Which part of a long history the model encodes: a function of the history's length and nothing else.

    Start-anchored positions end at `max_history`. A longer history is encoded from the smallest multiple of `stride`
    that leaves at most `max_history` tokens, so cached and recomputed scores are of the same sequence, and a state
    lives for `stride` tokens before it is rebuilt.
    """

    max_history: int
    stride: int

    def start(self, length: int) -> int:
        """First token encoded of a history of `length` tokens."""
        excess = length - self.max_history
        return 0 if excess <= 0 else -(-excess // self.stride) * self.stride


@dataclass(frozen=True)
class Rows:
    """A ragged batch. `items`, `actions` and `positions` are int64 `[T]`; an action of -1 means none (a candidate)."""

    items: torch.Tensor
    actions: torch.Tensor
    positions: torch.Tensor
    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return int(self.items.shape[0])


class Attention(Protocol):
    """The model's view of the cache: for each layer, one call for each span of rows, in order."""

    def spans(self) -> Sequence[tuple[slice, Attend]]:
        """Rows that one layer may compute together, and their attention. Nearly always one span of all rows."""
        ...


class Attend(Protocol):
    """Attention for one span of rows."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Append the new rows' keys and values, then attend.

        `q`, `k`, `v` and the result are `[span, heads * head_dim]` in the order of `Rows`; the result is
        `sum_j SiLU(q_i . k_j) v_j` over what row i may see, without the constant 1/N, which is the model's.
        """
        ...


class RankingModel(Protocol):
    """What the engine calls. All methods are stateless and safe on any thread, one at a time."""

    @property
    def declaration(self) -> Declaration: ...
    @property
    def kv_shape(self) -> KVShape: ...
    @property
    def window(self) -> Window: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...

    @property
    def row_values(self) -> int:
        """Values that a row of a slice needs at the peak of a layer, temporaries included."""
        ...

    @property
    def uncached_row_values(self) -> int:
        """Values that a row needs besides, through all layers, if its keys are not kept."""
        ...

    @property
    def scores_last_row(self) -> bool:
        """True if candidates are scored from the last history row's output instead of rows of their own."""
        ...

    def embed(self, rows: Rows) -> torch.Tensor:
        """`[T, hidden]`."""
        ...

    def encode(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        """All layers over `[T, hidden]`."""
        ...

    def score(self, outputs: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Scores `[m, tasks]` float32 of `candidates` int64 `[m]`.

        `outputs` is `[m, hidden]` (the candidates' own rows), or `[1, hidden]` (the last history row) if
        `scores_last_row`.
        """
        ...
