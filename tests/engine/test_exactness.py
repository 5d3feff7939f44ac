"""The scores never depend on what happens to be cached: random visits, evictions, rewrites, batches, sizes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.visits import geometries, run_random_visits


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(geometry=geometries, scoring=st.sampled_from(["target", "next_item"]), seed=st.integers(0, 2**32))
def test_scores_equal_a_dense_recompute_whatever_is_cached(
    geometry: dict[str, object], scoring: str, seed: int
) -> None:
    run_random_visits(geometry, scoring, seed, rounds=12)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(geometry=geometries, scoring=st.sampled_from(["target", "next_item"]), seed=st.integers(0, 2**32))
def test_scores_equal_a_dense_recompute_whatever_is_cached_at_length(
    geometry: dict[str, object], scoring: str, seed: int
) -> None:
    run_random_visits(geometry, scoring, seed, rounds=25)
