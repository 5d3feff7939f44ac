"""Hit ratios of a whole trace, by the cache manager alone: the decisions are the server's, nothing is computed."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tqdm import tqdm

from mtserve_backend.cache.records import Geometry
from perf.lab.command import Run
from perf.stats import ratio
from perf.traces.generator import requests
from perf.traces.shapes import Shape
from perf.traces.statistics import Statistics
from perf.traffic.manager import ManagerReplay, ReplayOptions

# The paper's units, whatever the preset's: it is the paper's cache that is compared with.
PAGE_TOKENS, CHUNK_TOKENS = 32, 1024


@dataclass(frozen=True)
class Simulated:
    """One run. The four shares are of `tokens`, all history tokens, and are 1 together with the host's."""

    share: float
    flush: bool
    device: float
    total: float
    recomputed: float
    new: float
    tokens: int
    evictions: int


def simulate(run: Run, shape: Shape, statistics: Statistics, share: float, flush: bool, batch: int) -> Simulated:
    """The host has room for everything, the device for `share` of what all users have at the end."""
    geometry = Geometry(
        page_tokens=PAGE_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
        device_pages=max(1, round(share * statistics.last_lengths_total / PAGE_TOKENS)),
        onload_pages=-(-batch * shape.longest // PAGE_TOKENS),
        host_chunks=statistics.last_lengths_total // CHUNK_TOKENS + shape.users,
    )
    label = f"device memory for {share:.0%}, {'with' if flush else 'without'} flush"
    trace = tqdm(
        requests(shape, run.seed), desc=label, total=statistics.requests, file=sys.stderr, disable=None, leave=False
    )
    counters = ManagerReplay(geometry, ReplayOptions(batch, flush), shape.longest).run(trace)
    tokens = counters.found_device + counters.found_host + counters.recomputed + counters.new
    return Simulated(
        share=share,
        flush=flush,
        device=ratio(counters.found_device, tokens),
        total=counters.hit_ratio(),
        recomputed=ratio(counters.recomputed, tokens),
        new=ratio(counters.new, tokens),
        tokens=tokens,
        evictions=counters.device_evictions,
    )
