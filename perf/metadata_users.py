"""What a request's metadata costs by the number of users known: one manager that grows, measured at each size."""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mtserve_backend import footprint
from mtserve_backend.cache.history import Tokens
from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Geometry, OnloadTask, Visit
from mtserve_backend.collector import Collector
from perf.stats import percentile

# A visit takes four pages and two chunks. The pools are full with 1,024 and 2,048 users, so that nearly every visit
# evicts, however many are known.
GEOMETRY = Geometry(page_tokens=4, chunk_tokens=8, device_pages=4_096, onload_pages=256, host_chunks=4_096)
HISTORY = 16
CALLS = ("look_up", "prepare", "commit")
NO_LIMIT = 1 << 60
# Bytes that a user is expected to need, with room to spare: a size that would not fit is left out.
USER_BYTES = 1_500


class GrowingUsers:
    """Users by number; their IDs are spread over 62 bits, as hashes are. Each has a history of 16 tokens."""

    def __init__(self) -> None:
        self.manager = CacheManager(GEOMETRY, lambda length: 0, NO_LIMIT, NO_LIMIT)
        self.known = 0
        self._tokens = Tokens(0, np.arange(HISTORY, dtype=np.int64), np.zeros(HISTORY, dtype=np.int32))

    def visit(self, number: int) -> Visit:
        return Visit((number * 0x2545F4914F6CDD1D) % (1 << 62), self._tokens)

    def grow(self, users: int) -> None:
        """Make users known who have no state: a log, and nothing on a tier."""
        manager = self.manager
        numbers = range(self.known, users)
        for number in tqdm(
            numbers, desc=f"{users:,} users", file=sys.stderr, mininterval=2, disable=len(numbers) < 1e5
        ):
            manager.commit(manager.prepare_uncached(manager.look_up(self.visit(number))))
        self.known = max(self.known, users)

    def request(self, number: int) -> tuple[int, int, int]:
        """Nanoseconds in look_up, prepare and commit; offloads and completions are done in between, not counted."""
        manager, visit = self.manager, self.visit(number)
        begin = time.perf_counter_ns()
        look_up = manager.look_up(visit)
        looked_up = time.perf_counter_ns()
        lease = manager.prepare(look_up)
        prepared = time.perf_counter_ns()
        if lease is None:
            raise RuntimeError("a full pool has no room for a history of four pages")
        manager.commit(lease)
        committed = time.perf_counter_ns()
        for task in [*manager.tasks, *manager.plan_offloads()]:
            if isinstance(task, OnloadTask):
                manager.onload_done(task, failed=False)
            else:
                manager.offload_done(task, failed=False)
        return looked_up - begin, prepared - looked_up, committed - prepared


def measure_users(sizes: Sequence[int], requests: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row per size. The collector of cycles is off while users are added and timed, and timed by itself."""
    users = GrowingUsers()
    rng = np.random.default_rng(seed)
    gc.collect()
    gc.disable()
    try:
        for size in sorted(sizes):
            free = available_bytes()
            if free is not None and free < (size - users.known) * USER_BYTES:
                yield {"users": size, "skipped": f"{free / 2**30:.1f} GiB of memory available"}
                return
            yield _measure_size(users, size, requests, rng)
    finally:
        gc.enable()


def _measure_size(users: GrowingUsers, size: int, requests: int, rng: np.random.Generator) -> dict[str, Any]:
    before, known = resident_bytes(), users.known
    begin = time.perf_counter()
    users.grow(size)
    grown_s = time.perf_counter() - begin
    added = users.known - known
    state_bytes = (resident_bytes() - before) / added
    counters = users.manager.counters
    # Until both pools are full.
    for number in rng.integers(0, size, GEOMETRY.host_chunks).tolist():
        users.request(number)
    evicted, loaded = counters.device_evictions, counters.onloaded
    taken = np.array([users.request(number) for number in rng.integers(0, size, requests).tolist()]).T / 1e3
    return {
        "users": size,
        "median_us": {name: statistics.median(times) for name, times in zip(CALLS, taken.tolist(), strict=True)},
        "total_us": {
            "fastest": float(taken.sum(0).min()),
            "median": statistics.median(taken.sum(0).tolist()),
            "p99": percentile(taken.sum(0).tolist(), 99),
        },
        "evictions_per_request": (counters.device_evictions - evicted) / requests,
        "onloaded_tokens_per_request": (counters.onloaded - loaded) / requests,
        "bytes_per_user": state_bytes,
        "added_us_per_user": 1e6 * grown_s / added,
        "full_collection_ms": _full_collection_ms(),
        "full_collection_frozen_ms": _frozen_collection_ms(),
    }


def _full_collection_ms() -> float:
    """What a full run of Python's collector of cycles stops the process for."""
    begin = time.perf_counter()
    gc.collect()
    return 1e3 * (time.perf_counter() - begin)


def _frozen_collection_ms() -> float:
    """The same once the product's `Collector` has been there."""
    Collector().between_batches()
    try:
        return _full_collection_ms()
    finally:
        gc.unfreeze()


def resident_bytes() -> int:
    """Of this process, now; where the system does not say, the most it ever had."""
    return footprint.resident_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes() -> int | None:
    """None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def flatness(rows: Sequence[dict[str, Any]]) -> float:
    """The slowest size's median over that of the smallest size."""
    totals: list[float] = [row["total_us"]["median"] for row in rows if "total_us" in row]
    return max(totals) / totals[0]
