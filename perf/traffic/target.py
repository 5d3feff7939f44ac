"""What answers visits. The contract; `engine.py` and `server.py` keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from perf.visits import Visit

# A long history recomputed on a busy machine takes its time, and is measured all the same.
PATIENCE_S = 600


@dataclass(frozen=True)
class Steps:
    """Milliseconds of each of the ten steps, all waves of a batch; `waited_ms` of step 8 is waiting for loads."""

    ms: tuple[float, ...]
    waited_ms: float
    rows: int
    waves: int


@dataclass(frozen=True)
class Answer:
    """`error`: why there is none. Scores float32 `[m, tasks]`, ranking int64 `[k]`; tokens by where they came from."""

    scores: npt.NDArray[np.float32]
    ranking: npt.NDArray[np.int64]
    device: int
    host: int
    recomputed: int
    error: str = ""

    @classmethod
    def failed(cls, why: str) -> Answer:
        return cls(np.empty((0, 0), np.float32), np.empty(0, np.int64), 0, 0, 0, why)


@dataclass(frozen=True)
class Served:
    """A batch's answers; each one's seconds from sending to answer, and the mean of what of it was queueing."""

    answers: tuple[Answer, ...]
    seconds: tuple[float, ...]
    queue_s: float
    steps: Steps | None = None

    @property
    def latency_s(self) -> float:
        """Of the batch: its slowest answer's."""
        return max(self.seconds)


class Target(Protocol):
    """An engine or a server's model, in one paradigm. Several threads may call `serve` at once."""

    def serve(self, visits: Sequence[Visit], top_k: int | None = None) -> Served:
        """Answer visits of different users that arrive together. A failure is an answer with an error."""

    def settle(self) -> None:
        """Wait until what was set in motion behind the answers has come to rest, so that it delays nobody else's."""


class TargetFailed(RuntimeError):
    """A measurement needs every answer, and one failed; the message is the answer's."""


def checked(served: Served) -> Served:
    """Raises `TargetFailed` for the first failed answer."""
    error = next((answer.error for answer in served.answers if answer.error), "")
    if error:
        raise TargetFailed(f"a request failed: {error}")
    return served
