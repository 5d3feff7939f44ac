"""The other end of `engine.EngineTarget`: builds the engine and answers what comes through the pipe."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from mtserve_backend import footprint
from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.engine import Engine
from mtserve_backend.ranking import Outcome, RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from mtserve_backend.steps import STEPS, WaveReport
from perf.traffic.target import Answer, Steps
from perf.visits import Visit

# As `service.RankingService`: while transfers are under way their completions are looked for this often.
BUSY_S, IDLE_S = 0.005, 1.0


@dataclass(frozen=True)
class Plan:
    """What to build: the model's folder, the knobs as `config.pbtxt` has them, the device."""

    folder: Path
    knobs: Mapping[str, str]
    device: str


def run(pipe: Connection, plan: Plan) -> None:
    """Until told to close, or until nobody holds the pipe's other end."""
    # Ctrl-C reaches every process of a terminal; the one that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = _Host(plan)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other end says it
        pipe.send((False, f"the engine could not be built: {error}"))
        return
    pipe.send((True, host.memory(None)))
    try:
        while True:
            if not pipe.poll(BUSY_S if host.busy else IDLE_S):
                host.engine.idle()
                continue
            what, given = pipe.recv()
            if what == "close":
                return
            try:
                pipe.send((True, getattr(host, what)(given)))
            except Exception as error:  # noqa: BLE001 - as above
                pipe.send((False, f"{type(error).__name__}: {error}"))
    except (EOFError, OSError):
        pass
    finally:
        host.engine.close(10)


class _Host:
    """The engine, and one method for each word that comes through the pipe."""

    def __init__(self, plan: Plan) -> None:
        config = Config.from_parameters(plan.knobs)
        device = torch.device("cuda", 0) if plan.device == "cuda" else torch.device("cpu")
        self._before = footprint.resident_bytes() or 0
        self.engine: Engine = build_engine(config, plan.folder, device)
        self._config = config
        self._reports: list[WaveReport] = []
        self.engine.observe = self._reports.append

    @property
    def busy(self) -> bool:
        return bool(self.engine.manager.tasks)

    def serve(self, given: tuple[list[Visit], int | None]) -> tuple[float, list[Answer], Steps]:
        visits, top_k = given
        requests = [
            RankRequest(visit.user, Tokens(0, visit.items, visit.actions), visit.candidates, top_k) for visit in visits
        ]
        self._reports.clear()
        begin = time.perf_counter()
        outcomes = self.engine.serve(requests)
        seconds = time.perf_counter() - begin
        answer = seconds, [_answer(outcome) for outcome in outcomes], _steps(self._reports)
        self.engine.idle()
        return answer

    def settle(self, _: None) -> None:
        self.engine.upkeep()
        self.engine.idle()
        while self.engine.manager.tasks:
            if not self.engine.moves.await_one():
                raise RuntimeError("a transfer did not end")
            self.engine.idle()

    def counters(self, _: None) -> dict[str, Any]:
        return asdict(self.engine.manager.counters)

    def memory(self, _: None) -> dict[str, int]:
        """Bytes of the process: before the engine was built, now, and at its peak; and what start-up planned."""
        model, pools, geometry = self.engine.compute.model, self.engine._pools, self.engine.manager.geometry
        dtype = getattr(torch, self._config.dtype)
        weights = footprint.weight_bytes(model)  # type: ignore[arg-type]
        planned = footprint.footprint(model, weights, geometry, pools, self._config, dtype)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        now = footprint.resident_bytes() or 0
        return {"before": self._before, "now": now, "peak": peak, **asdict(planned)}


def _answer(outcome: Outcome) -> Answer:
    if not isinstance(outcome, RankAnswer):
        return Answer.failed(str(outcome))
    cache = outcome.cache
    return Answer(outcome.scores, outcome.ranking, cache.device, cache.host, cache.recomputed)


def _steps(reports: Sequence[WaveReport]) -> Steps:
    ms = tuple(1e3 * sum(report.steps.seconds[name] for report in reports) for name in STEPS)
    waited = 1e3 * sum(report.steps.waited for report in reports)
    return Steps(ms, waited, sum(report.rows for report in reports), len(reports))
