"""What a caller asks of the engine and what it gets back, free of Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mtserve_backend.cache.history import Tokens
from mtserve_backend.cache.records import User


class Code(Enum):
    """Why a request was refused; the names are Triton's."""

    INVALID_ARG = "INVALID_ARG"
    NOT_FOUND = "NOT_FOUND"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


class RequestError(Exception):
    """One request cannot be answered; the others of its batch are not concerned."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def never_cancelled() -> bool:
    return False


@dataclass(frozen=True)
class RankRequest:
    """Score `candidates` (int64 `[m]`) for a user with this history; `top_k` None ranks all of them.

    `forget` asks instead to remove all that is kept of the user. `deadline` is in `time.monotonic` seconds; a request
    past it, or for which `cancelled` says so, is dropped if its computation has not begun.
    """

    user: User
    tokens: Tokens
    candidates: npt.NDArray[np.int64]
    top_k: int | None = None
    forget: bool = False
    deadline: float | None = None
    cancelled: Callable[[], bool] = never_cancelled


@dataclass(frozen=True)
class CacheInfo:
    """Where the history's tokens came from, and the history's length after the request."""

    device: int
    host: int
    recomputed: int
    new: int
    history_length: int


@dataclass(frozen=True)
class RankAnswer:
    """`scores` float32 `[m, tasks]` in the candidates' order; `ranking` int64 `[k]`: candidate IDs, best first."""

    scores: npt.NDArray[np.float32]
    ranking: npt.NDArray[np.int64]
    cache: CacheInfo


Outcome = RankAnswer | RequestError


def rank(
    scores: npt.NDArray[np.float32], candidates: npt.NDArray[np.int64], top_k: int | None
) -> npt.NDArray[np.int64]:
    """Candidates by the first task's score, best first; equal scores keep the order sent."""
    order = np.argsort(-scores[:, 0], kind="stable")
    best: npt.NDArray[np.int64] = candidates[order[:top_k]]
    return best
