"""An engine in a process of its own, driven directly: no server, and every step's time is known.

A process each, because OpenMP slows down where several threads of one process have teams of their own: engines side by
side in one process would measure each other.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from perf.traffic.engine_process import Plan, run
from perf.traffic.target import Served, TargetFailed
from perf.visits import Visit

# How long the process may take to build its engine; and to end.
START_S, END_S = 300.0, 15.0


class EngineTarget:
    """A `Target`. A context manager: the process lives inside it."""

    def __init__(self, folder: Path, knobs: Mapping[str, str], device: str = "cpu") -> None:
        self._plan = Plan(folder, dict(knobs), device)
        self._turn = threading.Lock()

    def __enter__(self) -> EngineTarget:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run, args=(theirs, self._plan), daemon=True)
        self._process.start()
        theirs.close()
        self.memory: dict[str, int] = self._reply(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._pipe.send(("close", None))
            self._process.join(END_S)
        except (OSError, ValueError):
            pass
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def serve(self, visits: Sequence[Visit], top_k: int | None = None) -> Served:
        """The batch is one call of the engine; waiting for its turn is queueing."""
        asked = time.perf_counter()
        with self._turn:
            waited = time.perf_counter() - asked
            seconds, answers, steps = self._call("serve", (list(visits), top_k))
        latency = waited + seconds
        return Served(tuple(answers), (latency,) * len(answers), waited, steps)

    def settle(self) -> None:
        with self._turn:
            self._call("settle", None)

    def counters(self) -> dict[str, Any]:
        """The manager's, since the start."""
        with self._turn:
            counters: dict[str, Any] = self._call("counters", None)
        return counters

    def resident(self) -> dict[str, int]:
        """Bytes: of the process now and at its peak."""
        with self._turn:
            found: dict[str, int] = self._call("memory", None)
        return found

    def _call(self, what: str, given: object) -> Any:
        try:
            self._pipe.send((what, given))
        except (OSError, ValueError) as error:
            raise TargetFailed(f"the engine's process has ended: {error}") from error
        return self._reply(None)

    def _reply(self, limit_s: float | None) -> Any:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self._pipe.poll(0.2):
            if not self._process.is_alive() and not self._pipe.poll(0):
                raise TargetFailed(f"the engine's process ended with code {self._process.exitcode}")
            if deadline is not None and time.monotonic() > deadline:
                raise TargetFailed(f"the engine was not ready after {limit_s:.0f} s")
        try:
            good, value = self._pipe.recv()
        except EOFError:
            raise TargetFailed("the engine's process ended without an answer") from None
        if not good:
            raise TargetFailed(value)
        return value
