"""The lively model of tests/engine behind the real server: histories to requests, answers to the dense reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.raw import RawRequest, raw_request

MODEL = "hierarchical"
CANDIDATES = np.arange(0, worlds.ITEMS, 4)
NOBODY = np.empty(0, dtype=np.int64)
EMPTY = History(NOBODY, NOBODY.astype(np.int32))
KNOBS = {
    "page_tokens": "4",
    "chunk_tokens": "8",
    "device_cache": "60 pages",
    "onload_buffer": "16 pages",
    "host_cache": "40 chunks",
    "max_events": "500",
    "threads": "1",
}


@contextmanager
def serving(
    folder: Path, weights: Path, knobs: dict[str, str] | None = None, **options: Any
) -> Iterator[EmbeddedServer]:
    """A server of one model, `MODEL`, with small pools."""
    repository.write_model(folder, MODEL, weights, KNOBS | (knobs or {}))
    with EmbeddedServer(folder, exit_timeout=20, **options) as running:
        yield running


def visit(user: int | str, history: History, start: int = 0, **options: Any) -> RawRequest:
    return raw_request(user, history.items[start:], history.actions[start:], CANDIDATES, start, **options)


def forget(user: int | str) -> RawRequest:
    return raw_request(user, EMPTY.items, EMPTY.actions, NOBODY, parameters={"forget": True})


def assert_scores(answer: object, model: HSTU, history: History) -> list[int]:
    """The answer's CACHE_INFO."""
    assert isinstance(answer, dict), answer
    expected = worlds.reference(model, history, CANDIDATES)
    scores = answer["SCORES"][0]
    assert scores.shape == expected.shape
    assert np.abs(scores - expected).max() <= worlds.TOLERANCE * np.abs(expected).max()
    return answer["CACHE_INFO"][0].tolist()
