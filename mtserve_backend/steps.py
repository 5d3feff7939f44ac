"""The ten steps of Algorithm 1, timed and marked in a profiler's timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

try:
    import nvtx
except ImportError:  # a bare machine with a GPU to measure on: everything works, a profiler's timeline has no names
    nvtx = None

STEPS = (
    "1 fetch cache lengths",
    "2 prepare metadata and onload",
    "3 strip cached tokens",
    "4 embed",
    "5 lay out",
    "6 await metadata",
    "7 update metadata, scatter",
    "8 encode",
    "9 offload",
    "10 score",
)


def _marked(name: str) -> AbstractContextManager[object]:
    return nvtx.annotate(name, domain="mtserve") if nvtx else nullcontext()


@dataclass
class StepTimes:
    """Seconds spent in each step by one wave; `waited` is the part of step 8 spent waiting for loads."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))
    waited: float = 0.0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        name = STEPS[number - 1]
        begin = time.perf_counter()
        with _marked(name):
            try:
                yield
            finally:
                self.seconds[name] += time.perf_counter() - begin

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class WaveReport:
    """What one wave did: for logs, metrics and measurements."""

    requests: int
    rows: int
    steps: StepTimes
