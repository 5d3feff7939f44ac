"""Attention over a padded batch of whole histories, differentiable: for training and as a plain dense reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from mtserve_backend.models.contract import Attend


class DenseAttention:
    """Causal SiLU attention over `[batch * length, heads * head_dim]` rows, nothing cached, right padding.

    The whole `[batch, heads, length, length]` score matrix is formed: the textbook way, which the paged kernels are
    checked and timed against. Padding lies right of every real row, so a causal mask already hides it.
    """

    def __init__(self, batch: int, length: int, heads: int) -> None:
        self.batch, self.length, self.heads = batch, length, heads
        self.visible = torch.ones(length, length, dtype=torch.bool).tril_()

    def spans(self) -> Sequence[tuple[slice, Attend]]:
        return [(slice(None), self)]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        del layer
        shape = (self.batch, self.length, self.heads, -1)
        q, k, v = (x.reshape(shape).transpose(1, 2) for x in (q, k, v))
        weights = F.silu(q @ k.transpose(-1, -2)).masked_fill(~self.visible.to(q.device), 0.0)
        return (weights @ v).transpose(1, 2).reshape(self.batch * self.length, -1)
