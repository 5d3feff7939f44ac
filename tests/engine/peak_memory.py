"""Prints the bytes that serving cold users took at most, and the bytes announced for it.

`python -m tests.engine.peak_memory FOLDER MODE PASS_TOKENS`
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from mtserve_backend import footprint
from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.engine import Engine
from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine

ITEMS, ACTIONS, LENGTH = 5000, 5, 20_000
PAGE = 4096


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def serve(engine: Engine, lengths: list[int], candidates: int) -> None:
    rng = np.random.default_rng(0)
    requests = [
        RankRequest(
            int(rng.integers(1, 2**60)),
            Tokens(0, rng.integers(0, ITEMS, length), rng.integers(0, ACTIONS, length).astype(np.int32)),
            rng.integers(0, ITEMS, candidates),
        )
        for length in lengths
    ]
    for outcome in engine.serve(requests):
        if not isinstance(outcome, RankAnswer):
            raise outcome


def main(folder: Path, mode: str, pass_tokens: int) -> None:
    shape = HSTUConfig(
        layers=3, heads=4, head_dim=64, hidden=256, items=ITEMS, actions=ACTIONS, max_history=LENGTH, tasks=("click",)
    )
    weights.save(HSTU(shape), folder)
    config = Config(
        cache_mode=mode,
        page_tokens=256,
        device_cache="48000 tokens",
        onload_buffer="0 pages",
        host_cache="1 chunks",
        pass_tokens=pass_tokens,
        max_events=LENGTH,
        max_candidates=1000,
        offload_quota_tokens=0,
    )
    engine = build_engine(config, folder)
    serve(engine, [300], 10)
    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    serve(engine, [LENGTH, 700], 1000)
    done.set()
    watcher.join()
    planned = footprint.footprint(
        engine.compute.model, 0, engine.manager.geometry, engine._pools, config, torch.float32
    )
    sys.stdout.write(f"{peak - before} {planned.requests if mode == 'recompute' else planned.workbench}\n")
    engine.close(10)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
