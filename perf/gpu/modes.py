"""The three cache modes through the whole engine, at every batch size: what a user waits for, without a server.

A host hit differs from a device hit in its load and in nothing else, so what it takes longer is the wait for it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.engine import Engine
from mtserve_backend.models import weights
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from perf.gpu.figures import Figure, of_times
from perf.gpu.place import Place

SPEEDUP_AIM, WAIT_AIM = 3.1, 0.10
# Of the paper's Table 1 at batch 8: so many tokens in a hundred are found on the device, so many in all.
DEVICE_HITS = 0.64
# Three groups: whoever comes from the host has been pushed off the device by the other two.
TURNS = 3
WARM_UP = 3
Mode: TypeAlias = Literal["recompute", "device", "hierarchical"]


class Visits:
    """Users of one engine with histories of about the scale's length; each visit brings new events and candidates."""

    def __init__(self, place: Place, folder: Path, batch: int, mode: Mode, groups: int) -> None:
        """`groups` of `batch` users; the device holds one group and a little: several must take turns on it."""
        scale = place.scale
        self.scale, self.batch, self.groups = scale, batch, groups
        room = scale.history + scale.new * (scale.repeats + WARM_UP + 2)
        pages = batch * (-(-room // scale.page_tokens) + 1)
        self.engine: Engine = build_engine(
            Config(
                cache_mode=mode,
                page_tokens=scale.page_tokens,
                chunk_tokens=scale.chunk_tokens,
                device_cache=f"{pages} pages",
                onload_buffer=f"{pages} pages",
                host_cache=f"{groups * batch * (-(-room // scale.chunk_tokens) + 1)} chunks",
                dtype="bfloat16" if place.on_gpu else "float32",
                offload_quota_tokens=max(1 << 20, scale.chunk_tokens),
            ),
            folder,
            place.device,
        )
        rng = np.random.default_rng(0)
        self._items = rng.integers(0, scale.model.items, room)
        self._actions = rng.integers(0, scale.model.actions, room).astype(np.int32)
        self._candidates = rng.integers(0, scale.model.items, scale.candidates)
        self._length = dict.fromkeys(range(1, groups * batch + 1), 0)
        self._most = room

    def visit(self, users: Sequence[int]) -> float:
        """A batch; seconds. Afterwards everything that it set in motion comes to rest."""
        requests = [self._request(user) for user in users]
        begin = time.perf_counter()
        outcomes = self.engine.serve(requests)
        taken = time.perf_counter() - begin
        for outcome in outcomes:
            if not isinstance(outcome, RankAnswer):
                raise outcome
        self.engine.upkeep()
        self.engine.idle()
        while self.engine.manager.tasks:
            if not self.engine.moves.await_one():
                raise RuntimeError("a transfer did not end")
            self.engine.idle()
        return taken

    def _request(self, user: int) -> RankRequest:
        known = self._length[user]
        stop = min(self._most, known + self.scale.new) if known else self.scale.history
        self._length[user] = stop
        return RankRequest(user, Tokens(0, self._items[:stop], self._actions[:stop]), self._candidates)

    def group(self, number: int) -> range:
        return range(number * self.batch + 1, (number + 1) * self.batch + 1)

    def found(self) -> tuple[int, int]:
        counters = self.engine.manager.counters
        return counters.found_device, counters.found_host

    def close(self) -> None:
        self.engine.close(60)


def run(place: Place, batch: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="mtserve-gpu-") as name:
        folder = Path(name)
        weights.save(HSTU(place.scale.model), folder)
        return _at(place, folder, batch)


def _at(place: Place, folder: Path, batch: int) -> list[Figure]:
    recompute = _timed(place, folder, batch, "recompute", 1, lambda visits, turn: visits.group(0))
    device = _timed(place, folder, batch, "device", 1, lambda visits, turn: visits.group(0))
    hierarchical = _timed(place, folder, batch, "hierarchical", 1, lambda visits, turn: visits.group(0))
    host = _timed(place, folder, batch, "hierarchical", TURNS, lambda visits, turn: visits.group(turn % TURNS))
    resident = min(batch - 1, round(DEVICE_HITS * batch))

    def mixed(visits: Visits, turn: int) -> list[int]:
        """Some who were here the last time, the others from the host."""
        return [*visits.group(0)[:resident], *visits.group(turn % TURNS)[resident:]]

    both = _timed(place, folder, batch, "hierarchical", TURNS, mixed)
    waited = max(0.0, median(both) - median(hierarchical))
    speedup = median(recompute) / median(both)
    at = f"batch {batch}"
    return [
        of_times(f"{at}: recompute", recompute),
        of_times(f"{at}: device, all found there", device),
        of_times(f"{at}: hierarchical, all on the device", hierarchical),
        of_times(f"{at}: hierarchical, all from the host", host),
        of_times(f"{at}: hierarchical, {resident} on the device, {batch - resident} from the host", both),
        Figure(
            f"{at}: speed-up over recompute at that mixture", speedup, "x",
            aim=place.aim(SPEEDUP_AIM) if batch == 8 else None,
        ),
        Figure(
            f"{at}: waiting for loads at that mixture", 1e3 * waited, "ms",
            share=waited / median(both), aim=place.aim(WAIT_AIM), below=True,
        ),
    ]  # fmt: skip


def _timed(
    place: Place, folder: Path, batch: int, mode: Mode, groups: int, users: Callable[[Visits, int], Sequence[int]]
) -> list[float]:
    visits = Visits(place, folder, batch, mode, groups)
    try:
        for number in range(groups):
            visits.visit(visits.group(number))
        for turn in range(WARM_UP):
            visits.visit(users(visits, turn))
        before = visits.found()
        taken = [visits.visit(users(visits, turn)) for turn in range(place.scale.repeats)]
        device, host = (now - then for now, then in zip(visits.found(), before, strict=True))
    finally:
        visits.close()
    _check_found(mode, groups, device, host)
    return taken


def _check_found(mode: str, groups: int, device: int, host: int) -> None:
    """Raises `RuntimeError` if the tokens were not found where the measurement means them to be."""
    all_of_one_group = groups == 1 and (device > 0) == (mode != "recompute") and host == 0
    if not (all_of_one_group or (groups == TURNS and host > 0)):
        raise RuntimeError(f"{mode}: {device} tokens were found on the device, {host} on the host; not what it is for")
