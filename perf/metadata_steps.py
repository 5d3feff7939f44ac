"""The steps of Algorithm 1 that are metadata, timed in a whole engine whose model computes nothing.

The engine, its streams and its pools are the product's, in the paper's geometry: pages of 32, chunks of 1,024, 40,960
device pages, 10,008 in the onload buffer, 8 layers. Only a token's state is small (one head of 2), so that the pools
fit anywhere, and `embed`, `encode` and `score` of the model are empty.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from mtserve_backend.cache.history import Tokens
from mtserve_backend.cache.records import Visit
from mtserve_backend.config import Config
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.contract import Attention, Declaration, RankingModel, Rows, Window
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from mtserve_backend.steps import STEPS, StepTimes, WaveReport
from perf.stats import percentile

METADATA_STEPS = (1, 2, 3, 6, 7)
MEANINGS = {
    1: "histories compared with the logs, users pinned (manager.look_up)",
    2: "pages allocated, users evicted, loads planned (manager.prepare) and submitted (moves.start_onloads)",
    3: "the rows that are left (waves.strip_cached_tokens), sorted and sliced (waves.slices)",
    4: "the rows as tensors (Slice.rows), an empty embedding: two changes of threads",
    5: "the view of the cache (CacheView: placements, spans, scratch pages)",
    6: "nothing: the engine's thread has made the metadata",
    7: "scatters submitted (moves.scatter)",
    8: "an empty model: two changes of threads",
    9: "lengths committed (manager.commit), offloads planned and submitted",
    10: "an empty score and the ranking of 32 candidates",
}
CONFIG = HSTUConfig(layers=8, heads=1, head_dim=2, hidden=2, items=1_000, actions=8, max_history=20_000, tasks=("x",))
BATCH, HISTORY, NEW, CANDIDATES, CHUNK = 8, 6_400, 4, 32, 1_024
ON_DEVICE = 40_960 * 32 // HISTORY


class EmptyModel:
    """The contract of a model, and no work."""

    def __init__(self, model: RankingModel) -> None:
        self.declaration: Declaration = model.declaration
        self.kv_shape: KVShape = model.kv_shape
        self.window: Window = model.window
        self.tasks: tuple[str, ...] = model.tasks
        self.scores_last_row: bool = model.scores_last_row
        self.row_values: int = model.row_values
        self.uncached_row_values: int = model.uncached_row_values

    def embed(self, rows: Rows) -> torch.Tensor:
        return torch.empty((len(rows), 1))

    def encode(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        del attention
        return x

    def score(self, outputs: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        del outputs
        return torch.zeros((len(candidates), 1))


class MetadataEngine:
    """An engine and its users: some thousands of bystanders who are only known, and guests with states.

    There are twice as many guests as the device holds. Those that visit in turn are always on the host only.
    """

    def __init__(self, bystanders: int, memory: Literal["pinned", "pageable"], seed: int) -> None:
        with tempfile.TemporaryDirectory(prefix="mtserve-metadata-") as folder:
            weights.save(HSTU(CONFIG), Path(folder))
            self.engine = build_engine(_knobs(memory), Path(folder))
        self.engine.compute.model = EmptyModel(self.engine.compute.model)
        self.reports: list[WaveReport] = []
        self.engine.observe = self.reports.append
        rng = np.random.default_rng(seed)
        self._items = rng.integers(0, CONFIG.items, 3 * HISTORY)
        self._actions = rng.integers(0, CONFIG.actions, 3 * HISTORY).astype(np.int32)
        self._candidates = np.arange(CANDIDATES)
        self._length = dict.fromkeys(range(2 * ON_DEVICE // BATCH * BATCH), 0)
        self._next = 0
        manager, few = self.engine.manager, Tokens(0, self._items[:16], self._actions[:16])
        for number in range(bystanders):
            manager.commit(manager.prepare_uncached(manager.look_up(Visit(f"bystander {number}", few))))
        for _ in range(len(self._length) // BATCH):
            self.visit(self.absent(), whole=True, new=HISTORY)

    def present(self) -> list[int]:
        """The guests that were served last: on the device."""
        return [(self._next - BATCH + guest) % len(self._length) for guest in range(BATCH)]

    def absent(self) -> list[int]:
        """The guests that have not been served for the longest: evicted, on the host."""
        first, self._next = self._next, (self._next + BATCH) % len(self._length)
        return list(range(first, first + BATCH))

    def visit(self, guests: Sequence[int], whole: bool, new: int = NEW, contended: bool = True) -> StepTimes:
        """One batch, each guest with `new` events more; all transfers are awaited, and tails flushed, after it.

        With `contended` off, what the wave submits is copied only after it, so that no copying thread asks for the
        interpreter while the metadata is made.
        """
        self.reports.clear()
        with nullcontext() if contended else self._copies_held_back():
            for outcome in self.engine.serve([self._request(guest, whole, new) for guest in guests]):
                if not isinstance(outcome, RankAnswer):
                    raise outcome
        (report,) = self.reports
        self._settle()
        return report.steps

    def visit_with_a_new_chunk(self) -> StepTimes:
        """One guest on the device, whose 1,024 new events are exactly a chunk. Step 9 is its offload's submission."""
        guest = self.present()[0]
        self.visit([guest], whole=False, new=-self._length[guest] % CHUNK or CHUNK)
        return self.visit([guest], whole=False, new=CHUNK, contended=False)

    def close(self) -> None:
        self.engine.close(10)

    def _request(self, guest: int, whole: bool, new: int) -> RankRequest:
        start, stop = self._length[guest], self._length[guest] + new
        self._length[guest] = stop
        tokens = Tokens(0, self._items[:stop], self._actions[:stop])
        return RankRequest(guest, tokens if whole else tokens.since(start), self._candidates)

    def _settle(self) -> None:
        for plan in (self.engine.upkeep, self.engine.idle):
            plan()
            while self.engine.manager.tasks:
                if not self.engine.moves.await_one():
                    raise RuntimeError("a transfer does not end")

    @contextmanager
    def _copies_held_back(self) -> Iterator[None]:
        gate = threading.Event()

        def hold() -> None:
            gate.wait()

        for stream in self.engine.streams.all():
            if stream is not self.engine.streams.compute:
                stream.submit(hold)
        try:
            yield
        finally:
            gate.set()


def _knobs(memory: Literal["pinned", "pageable"]) -> Config:
    return Config(
        page_tokens=32,
        chunk_tokens=CHUNK,
        device_cache="40960 pages",
        onload_buffer="10008 pages",
        host_cache="4096 chunks",
        host_memory=memory,
        user_log="1GiB",
        threads=1,
    )


def measure_steps(engine: MetadataEngine, rounds: int) -> list[dict[str, Any]]:
    """A row for each kind of batch: guests on the device or on the host, whole histories or deltas."""
    rows: list[dict[str, Any]] = []
    for place, guests in (("device", engine.present), ("host", engine.absent)):
        for whole in (True, False):
            for contended in (False, True) if place == "host" else (False,):
                times = [engine.visit(guests(), whole, contended=contended) for _ in range(rounds)]
                sent = "whole histories" if whole else "deltas"
                rows.append({"guests": place, "sent": sent, "copying_beside": contended, **_summary(times)})
    return rows


def measure_offload(engine: MetadataEngine, rounds: int) -> dict[str, float]:
    """Milliseconds of step 9 for one chunk of one user."""
    times: list[float] = []
    for number in range(rounds):
        if number % 4 == 0:  # a guest's history has room for some chunks
            engine.visit(engine.absent(), whole=False)
        times.append(1e3 * engine.visit_with_a_new_chunk().seconds[STEPS[8]])
    return {"fastest": min(times), "median": statistics.median(times), "p90": percentile(times, 90)}


def _summary(times: Sequence[StepTimes]) -> dict[str, Any]:
    totals = [1e3 * sum(steps.seconds[STEPS[number - 1]] for number in METADATA_STEPS) for steps in times]
    return {
        "steps_median_ms": {name: 1e3 * statistics.median(steps.seconds[name] for steps in times) for name in STEPS},
        "steps_fastest_ms": {name: 1e3 * min(steps.seconds[name] for steps in times) for name in STEPS},
        "metadata_ms": {
            "fastest": min(totals), "median": statistics.median(totals), "p90": percentile(totals, 90)
        },
    }  # fmt: skip
