"""The 16-bit types: coarser scores, and the same from every tier as from none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mtserve_backend.engine import Engine
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, settle

Lively = tuple[HSTU, Path]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_sixteen_bits_are_as_good_from_every_tier(
    lively: Lively, start_engine: Callable[..., Engine], dtype: str, host_memory: str
) -> None:
    model, folder = lively
    engine = start_engine(folder, dtype=dtype, host_memory=host_memory, device_cache="12 pages")
    plain = start_engine(folder, dtype=dtype, cache_mode="recompute")
    rng = np.random.default_rng(1)
    histories = {user: worlds.random_history(rng, 32) for user in (1, 2, 1, 2)}
    seen = np.zeros(2, dtype=int)
    for user in (1, 2, 1, 2, 2):
        request = worlds.request(user, histories[user], CANDIDATES)
        (answer,), (recomputed,) = engine.serve([request]), plain.serve([request])
        assert isinstance(answer, RankAnswer)
        assert isinstance(recomputed, RankAnswer)
        settle(engine)
        expected = worlds.reference(model, histories[user], CANDIDATES)
        scale, coarse = np.abs(expected).max(), torch.finfo(getattr(torch, dtype)).eps
        assert answer.scores.dtype == np.float32
        # Layers add their errors up; the same rows in another order round otherwise.
        assert np.abs(recomputed.scores - expected).max() <= 4 * coarse * scale
        assert np.abs(answer.scores - recomputed.scores).max() <= 4 * coarse * scale
        seen += (answer.cache.device > 0, answer.cache.host > 0)
    assert (seen > 0).all()
    assert engine.manager.counters.pages_onloaded > 0


def test_scoring_that_fails_leaves_requests_without_candidates_alone(
    lively: Lively, start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = lively
    engine = start_engine(folder)

    def failing(*_: object) -> torch.Tensor:
        raise ValueError("no head")

    monkeypatch.setattr(engine.compute.model, "score", failing)
    rng = np.random.default_rng(2)
    scored, warmed = engine.serve(
        [
            worlds.request(1, worlds.random_history(rng, 9), CANDIDATES),
            worlds.request(2, worlds.random_history(rng, 9), CANDIDATES[:0]),
        ]
    )
    assert "no head" in str(scored)
    assert isinstance(warmed, RankAnswer)
    assert warmed.cache.new == 9
