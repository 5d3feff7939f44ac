"""The whole engine on the device: cached scores equal a dense recompute, in good weather and in bad."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtserve_backend.engine import Engine
from mtserve_backend.ranking import RankAnswer
from tests.engine import worlds
from tests.engine.conftest import lively, start_engine  # noqa: F401 - fixtures
from tests.engine.test_batches import CANDIDATES, settle
from tests.engine.test_dtypes import Lively
from tests.engine.visits import geometries, run_random_visits
from tests.gpu.place import EXAMPLES
from tests.races.test_weather import TRANSFERS, run_through, weathers, worlds_of_knobs
from tests.races.weather import Weather

scorings = st.sampled_from(["target", "next_item"])
seeds = st.integers(0, 2**32)
PATIENT = settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))


def test_random_visits_score_as_a_dense_recompute_does(where: torch.device) -> None:
    @PATIENT
    @given(geometry=geometries, scoring=scorings, seed=seeds)
    def search(geometry: dict[str, object], scoring: str, seed: int) -> None:
        run_random_visits(geometry, scoring, seed, rounds=12, device=where)

    search()


def test_late_and_failing_transfers_never_spoil_a_score(where: torch.device, stall: Callable[[float], None]) -> None:
    """A late stage is a kernel that spins on that stage's stream."""

    @PATIENT
    @given(knobs=worlds_of_knobs, weather=weathers, dies=st.sampled_from([None, None, *TRANSFERS]))
    def search(knobs: dict[str, object], weather: Weather, dies: str | None) -> None:
        if dies:
            knobs = {**knobs, "transfer_timeout_s": 0.03}
        run_through(knobs, weather, rounds=8, dies=dies, device=where, stall=stall)

    search()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_sixteen_bits_are_as_good_from_every_tier(
    lively: Lively,  # noqa: F811
    start_engine: Callable[..., Engine],  # noqa: F811
    where: torch.device,
    dtype: str,
    host_memory: str,
) -> None:
    model, folder = lively
    engine = start_engine(folder, device=where, dtype=dtype, host_memory=host_memory, device_cache="12 pages")
    rng, tiers = np.random.default_rng(1), np.zeros(2, dtype=int)
    histories = {user: worlds.random_history(rng, 32) for user in (1, 2)}
    for user in (1, 2, 1, 2, 2):
        (answer,) = engine.serve([worlds.request(user, histories[user], CANDIDATES)])
        settle(engine)
        assert isinstance(answer, RankAnswer)
        expected = worlds.reference(model, histories[user], CANDIDATES)
        coarse = torch.finfo(getattr(torch, dtype)).eps
        assert np.abs(answer.scores - expected).max() <= 8 * coarse * np.abs(expected).max()
        tiers += (answer.cache.device > 0, answer.cache.host > 0)
    assert (tiers > 0).all(), "a tier never served"


def test_the_host_pool_is_page_locked(
    lively: Lively,  # noqa: F811
    start_engine: Callable[..., Engine],  # noqa: F811
    where: torch.device,
) -> None:
    engine = start_engine(lively[1], device=where, host_memory="pinned")
    assert engine._pools.pinned
    assert engine._pools.device.device == where
    if where.type == "cuda":
        assert engine._pools.host.is_pinned()
        assert not start_engine(lively[1], device=where, host_memory="pageable")._pools.host.is_pinned()
