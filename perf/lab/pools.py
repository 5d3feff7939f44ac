"""Knobs of engines and servers under measurement, from numbers of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from perf.lab.presets import Preset
from perf.traffic.target import PATIENCE_S


@dataclass(frozen=True)
class Pools:
    """Tokens that each tier has room for. `users`: how many share them; each has one page and chunk half empty."""

    device: int
    onload: int
    host: int
    users: int = 0
    chunk_tokens: int | None = None


def knobs(preset: Preset, mode: str, pools: Pools) -> dict[str, str]:
    """The parameters of a model in this mode, as `config.pbtxt` has them."""
    chunk = pools.chunk_tokens or preset.chunk_tokens
    return {
        "cache_mode": mode,
        "dtype": preset.dtype,
        "page_tokens": str(preset.page_tokens),
        "chunk_tokens": str(chunk),
        "device_cache": f"{max(1, -(-pools.device // preset.page_tokens))} pages",
        "onload_buffer": f"{-(-pools.onload // preset.page_tokens)} pages",
        "host_cache": f"{-(-pools.host // chunk) + max(1, pools.users)} chunks",
        "offload_quota_tokens": str(max(65_536, 2 * chunk)),
        "request_timeout_s": str(PATIENCE_S),
        # A load that is late would be measured as a recompute.
        "transfer_timeout_s": "60",
    }
