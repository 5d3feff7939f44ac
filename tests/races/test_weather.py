"""Random visits through the engine while its transfers are late, fail half way, and their threads die.

Every score equals the dense reference, the books balance after every batch, and in the end nothing is pinned.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtserve_backend import moves
from mtserve_backend.cache.history import Tokens
from mtserve_backend.engine import Engine
from mtserve_backend.ranking import Code, RankAnswer, RankRequest, RequestError
from tests.engine import worlds
from tests.engine.test_batches import CANDIDATES, grown
from tests.engine.visits import rewrite
from tests.engine.worlds import History
from tests.races.weather import Weather

_FOLDER = Path(tempfile.mkdtemp(prefix="mtserve_lively_"))
_MODEL = worlds.lively_model(_FOLDER)
NOBODY = np.empty(0, dtype=np.int64)
NOTHING = Tokens(0, NOBODY, NOBODY.astype(np.int32))

TRANSFERS = ("onload", "scatter", "offload", "load-0", "load-1", "save-0", "save-1")

worlds_of_knobs = st.fixed_dictionaries(
    {
        "page_tokens": st.sampled_from([2, 4]),
        "chunk_pages": st.sampled_from([1, 2, 4]),
        "device_tokens": st.integers(60, 150),
        "onload_pages": st.integers(0, 20),
        "host_chunks": st.integers(4, 60),
        "host_memory": st.sampled_from(["pinned", "pageable"]),
        "zero_on_free": st.booleans(),
        "transfer_timeout_s": st.sampled_from([0.03, 0.5, 5.0]),
        "offload_quota_tokens": st.sampled_from([16, 64, 10_000]),
    }
)
weathers = st.builds(
    Weather,
    seed=st.integers(0, 2**32),
    delay=st.sampled_from([0.0, 0.1, 0.5]),
    failure=st.sampled_from([0.0, 0.0, 0.02, 0.1]),
    slow=st.frozensets(st.sampled_from(["compute", *TRANSFERS]), max_size=2),
)


@contextmanager
def engine_of(knobs: dict[str, object], device: torch.device | None = None) -> Iterator[Engine]:
    page = int(str(knobs["page_tokens"]))
    engine = worlds.engine(
        _FOLDER,
        device,
        page_tokens=page,
        chunk_tokens=page * int(str(knobs["chunk_pages"])),
        device_cache=f"{int(str(knobs['device_tokens'])) // page} pages",
        onload_buffer=f"{knobs['onload_pages']} pages",
        host_cache=f"{knobs['host_chunks']} chunks",
        **{name: knobs[name] for name in ("host_memory", "zero_on_free", "transfer_timeout_s", "offload_quota_tokens")},
    )
    pause, moves.SAVE_PAUSE_S = moves.SAVE_PAUSE_S, 0.02  # else one failure would be the last for a whole example
    try:
        yield engine
    finally:
        moves.SAVE_PAUSE_S = pause
        engine.close(10)


def run_through(
    knobs: dict[str, object],
    weather: Weather,
    rounds: int,
    dies: str | None,
    device: torch.device | None = None,
    stall: Callable[[float], None] = time.sleep,
) -> None:
    """`dies` is a stream that is killed half way; what its transfers hold comes back all the same."""
    rng = np.random.default_rng(weather.seed)
    histories = [worlds.random_history(rng, int(rng.integers(1, 40))) for _ in range(6)]
    with engine_of(knobs, device) as engine:
        with weather.over(stall):
            for step in range(rounds):
                if step == rounds // 2:
                    kill(engine, dies)
                serve_some(engine, histories, rng)
                engine.manager.check()
                if rng.random() < 0.3:
                    engine.idle()
        settle(engine)
        for _ in range(2):  # and the sun comes out: what is kept is right
            serve_some(engine, histories, rng)
        settle(engine)
        engine.manager.check()
        assert not engine.manager.tasks
        assert not any(record.pins for _, record in engine.manager.users.items())
        assert not engine.manager.offloading_tokens


def serve_some(engine: Engine, histories: list[History], rng: np.random.Generator) -> None:
    """A batch of visits, some of them cancelled or too late, and now and then a user to forget."""
    batch, expected = [], []
    for _ in range(int(rng.integers(1, 5))):
        user = int(rng.integers(len(histories)))
        fate = rng.choice(["served", "cancelled", "late", "forgotten"], p=[0.88, 0.04, 0.04, 0.04])
        history = histories[user]
        if rng.random() < 0.85:
            history = grown(rng, history, int(rng.integers(0, 6)))
        else:
            history = rewrite(rng, history, histories)
        request = worlds.request(user + 1, history, CANDIDATES)
        if fate == "cancelled":
            looks = iter([False] * int(rng.integers(0, 3)))
            request = replace(request, cancelled=lambda looks=looks: next(looks, True))
        elif fate == "late":
            request = replace(request, deadline=time.monotonic() + float(rng.choice([-1, 0.01])))
        elif fate == "forgotten":
            request, history = RankRequest(user + 1, NOTHING, NOBODY, forget=True), worlds.random_history(rng, 0)
        histories[user] = history
        batch.append(request)
        expected.append((fate, history))
    for outcome, request, (fate, history) in zip(engine.serve(batch), batch, expected, strict=True):
        if isinstance(outcome, RequestError):
            assert (fate, outcome.code) in (
                ("cancelled", Code.CANCELLED),
                ("late", Code.UNAVAILABLE),
                ("forgotten", Code.UNAVAILABLE),
            ), outcome
        elif fate == "forgotten":
            assert isinstance(outcome, RankAnswer)
        else:
            worlds.assert_scores(outcome, worlds.reference(_MODEL, history, request.candidates))


def settle(engine: Engine) -> None:
    """Until nothing moves any more, though upkeep may start as much as it likes."""
    deadline = time.monotonic() + 5
    quiet = 0
    while quiet < 3:
        engine.idle()
        quiet = 0 if engine.manager.tasks else quiet + 1
        assert time.monotonic() < deadline, "the tiers do not come to rest"
        time.sleep(0.001)


def kill(engine: Engine, name: str | None) -> None:
    def die() -> None:
        raise SystemExit("killed")

    for stream in engine.streams.all():
        if stream.name == name:
            stream.submit(die)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(knobs=worlds_of_knobs, weather=weathers)
def test_scores_are_right_in_any_weather(knobs: dict[str, object], weather: Weather) -> None:
    run_through(knobs, weather, rounds=12, dies=None)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(knobs=worlds_of_knobs, weather=weathers, dies=st.sampled_from(TRANSFERS))
def test_scores_are_right_after_a_thread_has_died(knobs: dict[str, object], weather: Weather, dies: str) -> None:
    run_through({**knobs, "transfer_timeout_s": 0.03}, weather, rounds=8, dies=dies)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(knobs=worlds_of_knobs, weather=weathers, dies=st.sampled_from([None, None, None, *TRANSFERS]))
def test_scores_are_right_in_any_weather_at_length(
    knobs: dict[str, object], weather: Weather, dies: str | None
) -> None:
    if dies:
        knobs = {**knobs, "transfer_timeout_s": 0.03}
    run_through(knobs, weather, rounds=20, dies=dies)


def test_the_weather_is_as_bad_as_it_says() -> None:
    """Without this, sunshine would pass for a storm."""
    knobs: dict[str, object] = {
        "page_tokens": 4, "chunk_pages": 2, "device_tokens": 100, "onload_pages": 8, "host_chunks": 40,
        "host_memory": "pageable", "zero_on_free": True, "transfer_timeout_s": 5.0, "offload_quota_tokens": 10_000,
    }  # fmt: skip
    rng = np.random.default_rng(1)
    histories = [worlds.random_history(rng, int(rng.integers(1, 40))) for _ in range(6)]
    stages = {"copy", "copy_pages", "scatter_pages", "gather_pages"}
    struck: set[str] = set()
    with engine_of(knobs) as engine, Weather(1, 0.1, 0.01, frozenset()).over() as hits:
        counters, deadline = engine.manager.counters, time.monotonic() + 60
        while not (stages <= struck and counters.onload_failures > 2 and counters.onloaded > 50):
            serve_some(engine, histories, rng)
            engine.idle()
            struck = {hit.split()[0] for hit in hits}
            assert time.monotonic() < deadline, (struck, counters)
        settle(engine)
    assert counters.offload_failures > 2
    assert {hit.split()[-1] for hit in hits} == {"before", "during", "after"}
