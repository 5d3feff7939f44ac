"""On the device no more is taken than start-up announced, whatever arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtserve_backend import footprint
from mtserve_backend.config import Config
from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.startup import build_engine
from tests.engine.peak_memory import ACTIONS, ITEMS, LENGTH, serve


@pytest.mark.parametrize("pass_tokens", [2048, 8192])
@pytest.mark.parametrize("mode", ["hierarchical", "recompute"])
def test_a_cold_user_with_20_000_events_stays_within_the_workbench(
    where: torch.device, tmp_path: Path, mode: str, pass_tokens: int
) -> None:
    if where.type != "cuda":
        pytest.skip("on a CPU: tests/engine/test_workbench.py, which measures the process")
    shape = HSTUConfig(
        layers=3, heads=4, head_dim=64, hidden=256, items=ITEMS, actions=ACTIONS, max_history=LENGTH, tasks=("click",)
    )
    weights.save(HSTU(shape), tmp_path)
    config = Config(
        cache_mode=mode,
        device_cache="48000 tokens",
        onload_buffer="0 pages",
        host_cache="1 chunks",
        pass_tokens=pass_tokens,
        max_events=LENGTH,
        max_candidates=1000,
        offload_quota_tokens=0,
    )
    engine = build_engine(config, tmp_path, where)
    try:
        serve(engine, [300], 10)
        torch.cuda.reset_peak_memory_stats(where)
        before = torch.cuda.memory_allocated(where)
        serve(engine, [LENGTH, 700], 1000)
        peak = torch.cuda.max_memory_allocated(where) - before
        planned = footprint.footprint(
            engine.compute.model, 0, engine.manager.geometry, engine._pools, config, torch.float32
        )
    finally:
        engine.close(10)
    assert peak <= (planned.requests if mode == "recompute" else planned.workbench)
