"""HSTU: Hierarchical Sequential Transduction Unit, the MTServe paper's layer (equations 2-4).

u, v, q, k = split(SiLU(linear(norm(x))))
o          = SiLU(q k^T) v / N          causal, no softmax, N a constant of the model
x          = x + linear(norm(o * u))
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.contract import Attend, Attention, Declaration, Rows, Window


def _silu(x: torch.Tensor) -> torch.Tensor:
    """SiLU, in place where no gradient needs the input: the buffer is the layer's largest."""
    return F.silu(x) if x.requires_grad else F.silu(x, inplace=True)


class HSTULayer(nn.Module):
    """One block. Rows are `[T, hidden]`; the attention it is handed knows where keys live."""

    def __init__(self, config: HSTUConfig) -> None:
        super().__init__()
        self.inner = config.heads * config.head_dim
        self.inverse_n = 1.0 / config.n
        self.input_norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.uvqk = nn.Linear(config.hidden, 4 * self.inner)
        self.output_norm = nn.LayerNorm(self.inner, eps=config.norm_eps)
        self.output = nn.Linear(self.inner, config.hidden)

    def forward(self, x: torch.Tensor, index: int, attend: Attend) -> torch.Tensor:
        u, v, q, k = torch.split(_silu(self.uvqk(self.input_norm(x))), self.inner, dim=-1)
        o = attend(index, q, k, v) * self.inverse_n
        projected: torch.Tensor = self.output(self.output_norm(o * u))
        return x + projected


class HSTU(nn.Module):
    """Embeddings, layers, and one of two ways to score (paper, section 2).

    `target`: candidates are rows that see the history and themselves; scored by a head of several tasks, or by the
    dot product with their own output vector. `next_item`: logits at the last history row.
    """

    def __init__(self, config: HSTUConfig) -> None:
        super().__init__()
        self.config = config
        self.item_embedding = nn.Embedding(config.items, config.hidden)
        self.action_embedding = nn.Embedding(config.actions, config.hidden)
        # One more position than history: a candidate stands right after it.
        self.position_embedding = nn.Embedding(config.max_history + 1, config.hidden)
        self.layers = nn.ModuleList(HSTULayer(config) for _ in range(config.layers))
        self.head: nn.Module | None = None
        self.output_weight: nn.Parameter | None = None
        if config.tasks:
            head_hidden = config.head_hidden or config.hidden
            self.head = nn.Sequential(
                nn.Linear(config.hidden, head_hidden), nn.SiLU(), nn.Linear(head_hidden, len(config.tasks))
            )
        elif not config.tie_output:
            self.output_weight = nn.Parameter(torch.randn(config.items, config.hidden) * 0.02)
        for embedding in (self.item_embedding, self.action_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    @property
    def declaration(self) -> Declaration:
        return Declaration(mask="causal", positions="start", attention_scale="constant")

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(self.config.layers, self.config.heads, self.config.head_dim)

    @property
    def window(self) -> Window:
        return Window(self.config.max_history, self.config.stride)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.config.tasks or (self.config.scoring,)

    @property
    def row_values(self) -> int:
        # u, v, q, k, the attended rows and their products; inputs, norms, sums: tests/engine/test_workbench.py.
        return 6 * self.config.hidden + 12 * self.config.heads * self.config.head_dim

    @property
    def uncached_row_values(self) -> int:
        return 5 * self.config.hidden + 2 * self.config.heads * self.config.head_dim

    @property
    def scores_last_row(self) -> bool:
        return self.config.scoring == "next_item"

    def embed(self, rows: Rows) -> torch.Tensor:
        x = self.item_embedding.weight.index_select(0, rows.items)
        x += self.position_embedding.weight.index_select(0, rows.positions)
        # A row of zeros at the end is what -1 (no action) is the remainder of.
        actions = F.pad(self.action_embedding.weight, (0, 0, 0, 1))
        x += actions.index_select(0, rows.actions % len(actions))
        return x

    def encode(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            done = [layer(x[rows], index, attend) for rows, attend in attention.spans()]
            x = done[0] if len(done) == 1 else torch.cat(done)
        return x

    def score(self, outputs: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        if self.head is not None:
            scores: torch.Tensor = self.head(outputs)
            return scores.float()
        weight = self.item_embedding.weight if self.output_weight is None else self.output_weight
        products: torch.Tensor = (outputs * weight[candidates]).sum(dim=-1, keepdim=True)
        return products.float()
