"""How large a measurement is: `smoke` proves the command, `cpu` is for two cores, `a100` and `h200` for those GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mtserve_backend.models.config import HSTUConfig
from perf.paper_model import CONFIG

# Room for the longest histories of KuaiRand-1K.
PAPER_MODEL = HSTUConfig.from_json({**CONFIG.to_json(), "max_history": 20_480})
SMALL_MODEL = HSTUConfig(
    layers=2, heads=2, head_dim=32, hidden=64, items=1_000, actions=8, max_history=1_024, attention_n=64,
    scoring="target", tasks=("click",),
)  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """`history` is a user's, of which `new` events are new on a visit that ranks `candidates`.

    On the KuaiRand-like trace a visit brings `arriving` events (its mean is 9.9), and lengths are divided by `shorten`.
    `device_share` is the share of all users' tokens that the device has memory for.
    """

    name: str
    model: HSTUConfig
    gpu: bool
    history: int
    new: int
    candidates: int
    arriving: int
    rounds: int
    users: int
    visits: int
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    page_tokens: int
    chunk_tokens: int
    device_share: float = 0.6
    shorten: float = 1.0


SMOKE = Preset(
    "smoke", SMALL_MODEL, False, history=200, new=8, candidates=8, arriving=2, rounds=3, users=6, visits=12,
    batches=(1, 2), lengths=(64, 256), page_tokens=16, chunk_tokens=32, shorten=32.0,
)  # fmt: skip
CPU = Preset(
    "cpu", PAPER_MODEL, False, history=6_400, new=32, candidates=32, arriving=10, rounds=7, users=16, visits=16,
    batches=(1, 4, 8), lengths=(800, 1_600, 3_200, 6_400, 12_800), page_tokens=256, chunk_tokens=1_024,
)  # fmt: skip
A100 = replace(CPU, name="a100", gpu=True, rounds=30, users=200, visits=1_600, page_tokens=32)
H200 = replace(A100, name="h200")

PRESETS = {preset.name: preset for preset in (SMOKE, CPU, A100, H200)}
