"""Small models whose scores hang on every event of a history, engines around them, and an independent reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.engine import Engine
from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.contract import Rows
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine

ITEMS, ACTIONS, MAX_HISTORY, STRIDE = 60, 4, 96, 24
TOLERANCE = 1e-5


@dataclass
class History:
    """A user's whole history as a client knows it."""

    items: npt.NDArray[np.int64]
    actions: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.items)

    def since(self, start: int) -> Tokens:
        return Tokens(start, self.items[start:].copy(), self.actions[start:].copy())


def random_history(rng: np.random.Generator, length: int) -> History:
    return History(rng.integers(0, ITEMS, length), rng.integers(0, ACTIONS, length).astype(np.int32))


def lively_model(folder: Path, scoring: str = "target", seed: int = 0) -> HSTU:
    """Embeddings of unit scale and a small N: one event changed long ago moves the scores by far more than rounding."""
    torch.manual_seed(seed)
    config = HSTUConfig(
        layers=3,
        heads=2,
        head_dim=8,
        hidden=16,
        items=ITEMS,
        actions=ACTIONS,
        max_history=MAX_HISTORY,
        window_stride=STRIDE,
        attention_n=4,
        scoring=scoring,
        tasks=("click", "like") if scoring == "target" else (),
    )
    model = HSTU(config)
    with torch.no_grad():
        for embedding in (model.item_embedding, model.action_embedding, model.position_embedding):
            embedding.weight.normal_()
    weights.save(model, folder)
    return model.eval().requires_grad_(False)


def engine(folder: Path, device: torch.device | None = None, **knobs: object) -> Engine:
    defaults: dict[str, object] = {
        "page_tokens": 4,
        "chunk_tokens": 8,
        "device_cache": "40 pages",
        "onload_buffer": "8 pages",
        "host_cache": "16 chunks",
        "pass_tokens": 16,
        "threads": 1,
    }
    return build_engine(Config(**(defaults | knobs)), folder, device)


@torch.inference_mode()
def reference(model: HSTU, history: History, candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Scores by the textbook: each candidate behind the whole window in a sequence of its own, dense attention."""
    start = model.window.start(len(history))
    items, actions = torch.from_numpy(history.items[start:]), torch.from_numpy(history.actions[start:]).long()
    length, count = len(items), len(candidates)
    wanted = torch.from_numpy(candidates)
    if model.scores_last_row:
        rows = Rows(items, actions, torch.arange(length), ())
        output = model.encode(model.embed(rows), DenseAttention(1, length, model.config.heads))[-1:]
        return model.score(output, wanted).numpy()
    rows = Rows(
        torch.cat((items.expand(count, length), wanted[:, None]), dim=1).flatten(),
        torch.cat((actions.expand(count, length), torch.full((count, 1), -1)), dim=1).flatten(),
        torch.arange(length + 1).expand(count, length + 1).flatten(),
        (),
    )
    outputs = model.encode(model.embed(rows), DenseAttention(count, length + 1, model.config.heads))
    return model.score(outputs.view(count, length + 1, -1)[:, -1], wanted).numpy()


def assert_scores(answer: object, expected: npt.NDArray[np.float32]) -> RankAnswer:
    """The tolerance of docs/architecture.md: max |difference| / max |value| <= 1e-5."""
    assert isinstance(answer, RankAnswer), answer
    assert answer.scores.shape == expected.shape
    if expected.size:
        assert np.isfinite(answer.scores).all()
        assert np.abs(answer.scores - expected).max() <= TOLERANCE * np.abs(expected).max()
    return answer


def request(user: int | str | None, history: History, candidates: npt.NDArray[np.int64], start: int = 0) -> RankRequest:
    return RankRequest(user, history.since(start), candidates)
