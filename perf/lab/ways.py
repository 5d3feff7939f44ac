"""Ways to one visit's scores, in one process: from the cache, recomputed, recomputed plainly, and its bare products.

All run on the engine's compute stream: OpenMP slows down where several threads of a process have teams of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.models.contract import Rows
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from mtserve_backend.steps import WaveReport
from perf.lab.pools import Pools, knobs
from perf.lab.presets import Preset

USER = 1


class Ways:
    """One user whose history grows by the preset's new events with each cached visit."""

    def __init__(self, preset: Preset, folder: Path, history: int, visits: int, seed: int) -> None:
        """`folder` holds the model; there is room for so many `visits`."""
        model, page = preset.model, preset.page_tokens
        room = history + preset.new * (visits + 1)
        self.engine = build_engine(
            Config.from_parameters(knobs(preset, "hierarchical", Pools(room + 2 * page, 0, room))), folder
        )
        self.reports: list[WaveReport] = []
        self.engine.observe = self.reports.append
        self.length, self._preset = history, preset
        inner = model.heads * model.head_dim
        self._dense_model = HSTU(model)
        self._inputs, self._outputs = nn.Linear(model.hidden, 4 * inner), nn.Linear(inner, model.hidden)
        self._pages = torch.randn(model.layers, -(-room // page), 2, model.heads, page, model.head_dim)
        rng = np.random.default_rng(seed)
        self._items = rng.integers(0, model.items, room)
        self._actions = rng.integers(0, model.actions, room).astype(np.int32)
        self._candidates = rng.integers(0, model.items, preset.candidates)
        self._visit(USER)

    def close(self) -> None:
        self.engine.close(10)

    def cached(self) -> tuple[float, npt.NDArray[np.float32]]:
        """Seconds and scores of the next visit, its history on the device but for the new events."""
        self.length += self._preset.new
        return _timed(lambda: self._visit(USER))

    def recomputed(self) -> tuple[float, npt.NDArray[np.float32]]:
        """The same visit by the same engine, as with `cache_mode` recompute: nobody's keys are kept."""
        return _timed(lambda: self._visit(None))

    def products(self) -> float:
        """Seconds of the matrix products of a cached visit and nothing else, over pages laid out as the engine's."""
        return _timed(lambda: self._on_the_compute_stream(self._products))[0]

    def dense(self) -> float:
        """Seconds of as many rows as the recompute has, through the same layers with the textbook attention."""
        return _timed(lambda: self._on_the_compute_stream(self._dense))[0]

    def _visit(self, user: int | None) -> npt.NDArray[np.float32]:
        tokens = Tokens(0, self._items[: self.length], self._actions[: self.length])
        (answer,) = self.engine.serve([RankRequest(user, tokens, self._candidates)])
        if not isinstance(answer, RankAnswer):
            raise answer
        return answer.scores

    def _on_the_compute_stream(self, work: Callable[[], None]) -> None:
        stream = self.engine.streams.compute
        stream.submit(work)
        stream.record().wait(timeout_s=600)

    @torch.inference_mode()
    def _products(self) -> None:
        model, page = self._preset.model, self._preset.page_tokens
        rows = self._preset.new + self._preset.candidates
        x, queries = torch.randn(rows, model.hidden), torch.randn(model.heads, rows, model.head_dim)
        scores, attended = torch.empty(model.heads, rows, page), torch.zeros_like(queries)
        for keys_and_values in self._pages:
            torch.addmm(self._inputs.bias, x, self._inputs.weight.t())
            for keys, values in keys_and_values[: -(-self.length // page)]:
                torch.bmm(queries, keys.transpose(1, 2), out=scores)
                attended.baddbmm_(scores, values)
            torch.addmm(self._outputs.bias, attended.view(rows, -1), self._outputs.weight.t())

    @torch.inference_mode()
    def _dense(self) -> None:
        items = torch.from_numpy(np.concatenate((self._items[: self.length], self._candidates)))
        actions = torch.from_numpy(np.concatenate((self._actions[: self.length], np.zeros_like(self._candidates))))
        rows = Rows(items, actions, torch.arange(len(items)), ())
        model = self._dense_model
        outputs = model.encode(model.embed(rows), DenseAttention(1, len(rows), self._preset.model.heads))
        model.score(outputs[-len(self._candidates) :], torch.from_numpy(self._candidates))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result
