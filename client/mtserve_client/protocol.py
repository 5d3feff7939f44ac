"""docs/protocol.md in code: a call and its tensors, an answer and its tensors. Shared by every transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtserve_client.errors import InvalidRequest, ServerFault
from mtserve_client.events import Events, integers
from mtserve_client.users import UserId

OUTPUTS = ("SCORES", "RANKING", "CACHE_INFO")


@dataclass(frozen=True)
class Call:
    """One request to the server.

    Attributes:
        user: a checked user ID (users.check_user).
        events: the events sent, `[n]`.
        start: position of the first of them in the user's history; 0: they are the whole history.
        candidates: item IDs to score, int64 `[m]`.
        top_k: how many candidates RANKING holds; None: all.
        prefix_digest: of the events before `start` (digest.py).
        forget: remove all that the server keeps of the user; events and candidates are empty.
    """

    user: UserId
    events: Events
    start: int
    candidates: NDArray[np.int64]
    top_k: int | None
    prefix_digest: int = 0
    forget: bool = False

    def inputs(self, infer_input: Callable[[str, list[int], str], Any]) -> list[Any]:
        """The four input tensors, as `infer_input` (a tritonclient's InferInput class) makes them."""
        tensors: list[tuple[str, NDArray[Any], str]] = [
            ("HISTORY_ITEMS", self.events.items, "INT64"),
            ("HISTORY_ACTIONS", self.events.actions, "INT32"),
            ("HISTORY_START", np.array([self.start], dtype=np.int64), "INT64"),
            ("CANDIDATES", self.candidates, "INT64"),
        ]
        made = []
        for name, values, datatype in tensors:
            tensor = infer_input(name, [1, len(values)], datatype)
            tensor.set_data_from_numpy(values.reshape(1, -1))
            made.append(tensor)
        return made

    @property
    def parameters(self) -> dict[str, str | int | bool]:
        """The request parameters beside Triton's own."""
        parameters: dict[str, str | int | bool] = {}
        if self.forget:
            parameters["forget"] = True
        if self.top_k is not None:
            parameters["top_k"] = self.top_k
        if self.start:
            parameters["prefix_digest"] = f"{self.prefix_digest:016x}"
        return parameters


@dataclass(frozen=True)
class CacheInfo:
    """Where the server found the history's tokens.

    Attributes:
        device: found on the accelerator.
        host: found in host memory.
        recomputed: known before, but their state was gone.
        new: not known before.
        history_length: the history's length after the request.
    """

    device: int
    host: int
    recomputed: int
    new: int
    history_length: int

    @property
    def hit_ratio(self) -> float:
        """Share of the history taken from the cache, 0.0 to 1.0; 0.0 for an empty history."""
        total = self.device + self.host + self.recomputed + self.new
        return (self.device + self.host) / total if total else 0.0


@dataclass(frozen=True, eq=False)
class Ranking:
    """The answer to a call.

    Attributes:
        scores: float32 `[m, tasks]`, one row per candidate, in the order sent.
        ranking: int64 `[k]`, the candidates' item IDs, best first by the first task.
        cache: what this call cost the server.
    """

    scores: NDArray[np.float32]
    ranking: NDArray[np.int64]
    cache: CacheInfo


def decode(output: Callable[[str], NDArray[Any] | None], candidates: int) -> Ranking:
    """The Ranking in the output tensors, which `output` gives by name; `candidates` is how many were sent.

    Raises:
        ServerFault: an output is missing, or its type or shape is not the protocol's.
    """
    scores = _expect(output, "SCORES", np.float32, 3)
    ranking = _expect(output, "RANKING", np.int64, 2)
    info = _expect(output, "CACHE_INFO", np.int32, 2)
    if scores.shape[:2] != (1, candidates) or ranking.shape[0] != 1 or info.shape != (1, 5):
        raise ServerFault(
            f"answer of unexpected shape for {candidates} candidates: SCORES {list(scores.shape)}, "
            f"RANKING {list(ranking.shape)}, CACHE_INFO {list(info.shape)}"
        )
    return Ranking(scores[0], ranking[0], CacheInfo(*(int(count) for count in info[0])))


def _expect(
    output: Callable[[str], NDArray[Any] | None], name: str, dtype: type[np.generic], dimensions: int
) -> NDArray[Any]:
    values = output(name)
    if values is None:
        raise ServerFault(f"the answer holds no {name}: is this model an mtserve model?")
    if values.dtype != dtype or values.ndim != dimensions:
        raise ServerFault(
            f"{name} came as {values.dtype} {list(values.shape)}, not as {np.dtype(dtype)} of {dimensions} dimensions"
        )
    return np.array(values)  # a copy: what came is a read-only view of the whole message


def check_candidates(candidates: Any) -> NDArray[np.int64]:
    """Candidates as int64 `[m]`; m may be 0. Raises InvalidRequest."""
    return integers(candidates, np.int64, "candidates")


def check_top_k(top_k: int | None) -> int | None:
    """A positive int or None. Raises InvalidRequest."""
    if top_k is None:
        return None
    if isinstance(top_k, bool) or not isinstance(top_k, (int, np.integer)) or not 1 <= top_k < 2**31:
        raise InvalidRequest(f"top_k is an int from 1 on, or None for all, got {top_k!r}")
    return int(top_k)
