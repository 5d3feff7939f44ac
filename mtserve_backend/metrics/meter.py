"""Counts what happens to requests and waves, and looks at the engine between batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtserve_backend.cache.records import OffloadTask
from mtserve_backend.metrics.distribution import MICROSECONDS, MILLISECONDS, Distribution
from mtserve_backend.metrics.state import EngineState, Fixed, RequestState, State
from mtserve_backend.ranking import CacheInfo, Code, Outcome, RankAnswer
from mtserve_backend.steps import STEPS, WaveReport

if TYPE_CHECKING:
    from mtserve_backend.engine import Engine

# The engine's thread looks at the engine at most so often: some 30 microseconds each time.
LOOK_EVERY_S = 0.2

OK = "ok"
OUTCOMES = (OK, *(code.value.lower() for code in Code))
FOUND = ("device", "host", "nothing")


class Meter:
    """`answered` is for the thread that answers, `wave` and `look` for the engine's, `state` for any."""

    def __init__(self, engine: Engine, fixed: Fixed, engine_up: Callable[[], bool] = lambda: True) -> None:
        self.fixed = fixed
        self.engine_up = engine_up
        self._batch_times, self._wave_times = Distribution(MILLISECONDS), Distribution(MILLISECONDS)
        self._onload_waits = Distribution(MICROSECONDS)
        self._engine = engine
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        self._visits = dict.fromkeys(FOUND, 0)
        self._batches = self._candidates = self._waves = self._rows = 0
        self._step_seconds = dict.fromkeys(STEPS, 0.0)
        self._look_from = 0.0
        self._seen = self._see()
        engine.observe = self.wave

    def answered(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """A batch was answered, `seconds` after it was taken up."""
        self._batches += 1
        self._batch_times.add(seconds)
        for outcome in outcomes:
            if isinstance(outcome, RankAnswer):
                self._outcomes[OK] += 1
                self._visits[_found(outcome.cache)] += 1
                self._candidates += len(outcome.scores)
            else:
                self._outcomes[outcome.code.value.lower()] += 1

    def wave(self, report: WaveReport) -> None:
        self._waves += 1
        self._rows += report.rows
        for step, seconds in report.steps.seconds.items():
            self._step_seconds[step] += seconds
        self._wave_times.add(report.steps.total)
        if report.steps.waited:
            self._onload_waits.add(report.steps.waited)

    def look(self) -> None:
        """Between batches, and when there is nothing to do."""
        now = time.monotonic()
        if now >= self._look_from:
            self._look_from = now + LOOK_EVERY_S
            self._seen = self._see()

    def state(self) -> State:
        """The engine as it was last seen, and the requests answered until now."""
        requests = RequestState(
            batches=self._batches,
            outcomes=dict(self._outcomes),
            visits=dict(self._visits),
            candidates=self._candidates,
            batch_times=self._batch_times.state(),
            engine_up=self.engine_up(),
        )
        return State(self.fixed, self._seen, requests)

    def last_state(self) -> State:
        """After the engine's thread has ended."""
        self._seen = self._see()
        return self.state()

    def _see(self) -> EngineState:
        engine, manager, tiers = self._engine, self._engine.manager, self._engine.manager.tiers
        counters = copy.copy(manager.counters)
        return EngineState(
            counters=counters,
            recomputed=dict(manager.counters.recomputed_because),
            waves=self._waves,
            rows=self._rows,
            step_seconds=dict(self._step_seconds),
            wave_times=self._wave_times.state(),
            onload_waits=self._onload_waits.state(),
            onload_seconds=engine.moves.onloader.load_seconds,
            scatter_seconds=engine.moves.onloader.scatter_seconds,
            offload_seconds=engine.moves.offloader.seconds,
            device_pages_free=tiers.primary.free,
            onload_pages_free=tiers.onload.free,
            host_chunks_free=tiers.chunks.free,
            users_known=len(manager.users),
            users_on_device=len(tiers.on_device),
            users_on_host=len(tiers.on_host),
            users_unsaved=len(tiers.unsaved),
            offloads_pending=sum(isinstance(task, OffloadTask) for task in manager.tasks),
            offload_pending_tokens=manager.offloading_tokens,
            log_bytes=manager.log_bytes,
            streams_broken=sum(stream.broken is not None for stream in engine.streams.all()),
        )


def _found(cache: CacheInfo) -> str:
    """Where a user's state was, or most of what there was of it."""
    return "device" if cache.device else "host" if cache.host else "nothing"
