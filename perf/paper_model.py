"""The MTServe paper's model size with random weights: what a request costs does not depend on what was learnt."""

from __future__ import annotations

from pathlib import Path

import torch

from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU

CONFIG = HSTUConfig(
    layers=8,
    heads=4,
    head_dim=128,
    hidden=512,
    items=10_000,
    actions=8,
    max_history=8192,
    attention_n=1024,
    scoring="target",
    tasks=("click",),
)


def write_paper_model(folder: Path, seed: int, config: HSTUConfig | None = None) -> Path:
    """The model's folder: `folder`, 60 MB. With `config`, one of another size, as random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        weights.save(HSTU(config or CONFIG), folder)
    return folder
