"""How large a measurement is: the model, the kind of machine, the units of memory. Each command adds its own sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mtserve_backend.models.config import HSTUConfig
from perf.paper_model import CONFIG
from perf.traces.feedback import ACTIONS

# The engine's cache modes, the baseline first.
PARADIGMS = ("recompute", "device", "hierarchical")

# A history that no made-up trace outgrows: there, windows would be about something else than caching.
LONGEST = 20_480


@dataclass(frozen=True)
class Preset:
    """`dtype`, `page_tokens`, `chunk_tokens`: the knobs; `device`: cpu or cuda; `size`: which of a command's sizes."""

    name: str
    size: Literal["smoke", "cpu", "gpu"]
    about: str
    device: Literal["cpu", "cuda"]
    dtype: str
    model: HSTUConfig
    page_tokens: int
    chunk_tokens: int
    new: int
    candidates: int

    @property
    def token_bytes(self) -> int:
        """Of one token's state."""
        value = 4 if self.dtype == "float32" else 2
        return 2 * self.model.layers * self.model.heads * self.model.head_dim * value


TINY = HSTUConfig(
    layers=2, heads=2, head_dim=32, hidden=64, items=1_000, actions=ACTIONS, max_history=4_096, attention_n=64,
    scoring="target", tasks=("click",),
)  # fmt: skip
PAPER = replace(CONFIG, actions=ACTIONS, max_history=LONGEST)

SMOKE = Preset("smoke", "smoke", "a tiny model: seconds, no figure to keep", "cpu", "float32", TINY, 32, 128, 8, 8)
CPU = Preset("cpu", "cpu", "2 cores, the paper's model in float32", "cpu", "float32", PAPER, 256, 1024, 32, 32)
A100 = Preset("a100", "gpu", "one A100 80 GB; not measured yet", "cuda", "bfloat16", PAPER, 32, 1024, 64, 64)
H200 = Preset("h200", "gpu", "one H200; not measured yet", "cuda", "bfloat16", PAPER, 32, 1024, 64, 64)

PRESETS = {preset.name: preset for preset in (SMOKE, CPU, A100, H200)}
