"""What the real server's metrics port says after requests whose truth is known."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend import repository
from mtserve_backend.commands.scrape import Scrape, scrape
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.metrics.families import ALL
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.lively import CANDIDATES, KNOBS, MODEL, forget, serving, visit
from tests.server.raw import Raw
from tests.server.test_embedded import within

MODES = ("hierarchical", "device", "recompute")
EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[HSTU, Path]:
    folder = tmp_path_factory.mktemp("lively")
    return worlds.lively_model(folder), folder


@pytest.fixture(scope="module")
def running(model: tuple[HSTU, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server with all modes, so that their series must be kept apart."""
    folder = tmp_path_factory.mktemp("repository")
    for mode in MODES:
        repository.write_model(folder, mode, model[1], KNOBS | {"cache_mode": mode})
    with EmbeddedServer(folder, exit_timeout=20) as server:
        yield server


class Truth:
    """What the answers themselves say, added up."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.tokens = np.zeros(4, dtype=np.int64)
        self.found: Counter[str] = Counter()
        self.candidates = 0
        self.uncached = 0

    def send(self, raw: Raw, mode: str, request: object, outcome: str = "ok") -> None:
        if outcome != "ok":
            with pytest.raises(InferenceServerException):
                raw.send(mode, request)  # type: ignore[arg-type]
        else:
            answer = raw.send(mode, request)  # type: ignore[arg-type]
            device, host = answer["CACHE_INFO"][0, :2]
            self.tokens += answer["CACHE_INFO"][0, :4]
            self.found["device" if device else "host" if host else "nothing"] += 1
            self.candidates += answer["SCORES"].shape[1]
        self.outcomes[outcome] += 1


def settled(url: str, holds: Callable[[Scrape], bool]) -> Scrape:
    """Once a condition holds; published totals follow the requests by a second or so."""
    assert within(15, lambda: holds(scrape(url))), "the metrics port never came to say so"
    return scrape(url)


@pytest.mark.parametrize("mode", MODES)
def test_totals_are_those_of_the_answers(running: EmbeddedServer, model: tuple[HSTU, Path], mode: str) -> None:
    rng, truth = np.random.default_rng(7), Truth()
    histories = {user: worlds.random_history(rng, int(rng.integers(10, 50))) for user in range(1, 13)}
    before = scrape(running.metrics_url)
    assert before.value("mtserve_requests_total", mode, outcome="ok") == 0, "there from the start, at zero"
    with closing(Raw("grpc", running)) as raw:
        for turn in range(4):
            for user in rng.permutation(list(histories)):
                more = worlds.random_history(rng, int(rng.integers(0, 4)))
                old = histories[user]
                grown = History(np.append(old.items, more.items), np.append(old.actions, more.actions))
                if turn == 2 and user % 3 == 0:
                    grown = worlds.random_history(rng, 30)  # rewritten from its first token on
                histories[user] = grown
                truth.send(raw, mode, visit(int(user), grown))
        truth.send(raw, mode, visit(99, histories[1], start=5), "not_found")
        truth.send(raw, mode, visit(1, histories[1], parameters={"top_k": -1}), "invalid_arg")
        truth.send(raw, mode, visit(1, histories[1], parameters={"top_k": "x"}), "invalid_arg")
        truth.send(raw, mode, forget(2))
    total, tokens_total = sum(truth.outcomes.values()), truth.tokens.sum()

    def told(samples: Scrape) -> bool:
        requests = samples.by("mtserve_requests_total", "outcome", mode)
        tokens = samples.by("mtserve_history_tokens_total", "source", mode)
        forgotten = samples.value("mtserve_users_forgotten_total", mode)
        return (sum(requests.values()), sum(tokens.values()), forgotten) == (total, tokens_total, 1)

    samples = settled(running.metrics_url, told)
    outcomes = samples.by("mtserve_requests_total", "outcome", mode)
    assert {name: count for name, count in outcomes.items() if count} == truth.outcomes
    tokens = samples.by("mtserve_history_tokens_total", "source", mode)
    assert [tokens[source] for source in ("device", "host", "recomputed", "new")] == truth.tokens.tolist()
    assert sum(samples.by("mtserve_recomputed_tokens_total", "reason", mode).values()) == truth.tokens[2]
    assert {k: v for k, v in samples.by("mtserve_visits_total", "found", mode).items() if v} == truth.found
    assert samples.value("mtserve_candidates_total", mode) == truth.candidates
    assert samples.value("mtserve_users", mode, tier="known") == len(histories) - 1
    assert samples.value("mtserve_engine_up", mode) == 1
    assert samples.value("mtserve_streams_broken", mode) == 0
    assert samples.value("mtserve_batches_total", mode) == samples.value("mtserve_batch_seconds_count", mode)
    ratio = samples.by("mtserve_hit_ratio", "tier", mode)
    assert ratio["device"] == pytest.approx(truth.tokens[0] / truth.tokens.sum(), rel=1e-4)
    assert ratio["host"] == pytest.approx(truth.tokens[1] / truth.tokens.sum(), rel=1e-4)
    _check_mode(samples, mode, truth, model[0])


def _check_mode(samples: Scrape, mode: str, truth: Truth, model: HSTU) -> None:
    """What the mode's pools, and the moves between them, must be."""
    token_bytes = model.kv_shape.values_per_token * 4
    page = token_bytes * int(KNOBS["page_tokens"])
    pools = samples.by("mtserve_pool_bytes", "pool", mode)
    sizes = {
        "device": 0 if mode == "recompute" else 60 * page,
        "onload": 16 * page if mode == "hierarchical" else 0,
        "host": 40 * 2 * page if mode == "hierarchical" else 0,
    }
    assert pools == sizes
    used = samples.by("mtserve_pool_used_bytes", "pool", mode)
    assert all(0 <= used[pool] <= pools[pool] and used[pool] % page == 0 for pool in pools)
    cached = samples.by("mtserve_cached_tokens", "tier", mode)
    assert cached["device"] * token_bytes <= used["device"] + used["onload"]
    reasons = samples.by("mtserve_recomputed_tokens_total", "reason", mode)
    moved = samples.by("mtserve_transfer_bytes_total", "direction", mode)
    seconds = samples.by("mtserve_transfer_seconds_total", "direction", mode)
    evicted = samples.by("mtserve_evictions_total", "tier", mode)
    if mode == "hierarchical":
        assert truth.tokens[1] > 0
        assert moved["onload"] >= truth.tokens[1] * token_bytes * 0.9
        assert moved["offload"] > 0
        assert all((seconds[direction] > 0) == (moved[direction] > 0) for direction in moved)
        assert samples.value("mtserve_onload_wait_seconds_count", mode) > 0
        assert evicted["device"] > 0
    else:
        assert not any(moved.values())
        assert not any(seconds.values())
        assert samples.value("mtserve_onload_wait_seconds_count", mode) == 0
    if mode == "device":
        assert evicted["device"] > 0
        assert reasons["evicted"] > 0
    if mode == "recompute":
        assert reasons == {**dict.fromkeys(reasons, 0), "uncached": truth.tokens[2]}
        assert samples.value("mtserve_uncached_requests_total", mode) == sum(truth.found.values()) - 1
    steps = samples.by("mtserve_step_seconds_total", "step", mode)
    assert len(steps) == 10
    assert steps["8 encode"] > 0
    assert samples.value("mtserve_wave_seconds_count", mode) == samples.value("mtserve_waves_total", mode)
    assert samples.value("mtserve_rows_total", mode) >= truth.tokens[3] + truth.candidates


def test_everything_in_the_table_is_there(running: EmbeddedServer) -> None:
    samples = scrape(running.metrics_url)
    names = {name for name, _ in samples.samples if name.startswith("mtserve_")}
    assert names == {family.name for family in ALL}
    for name, labels in samples.samples:
        if name.startswith("mtserve_"):
            assert {"model", "version"} <= dict(labels).keys()


def test_no_user_is_named(running: EmbeddedServer) -> None:
    secret = "someone@example.org"
    history = worlds.random_history(np.random.default_rng(1), 20)
    with closing(Raw("grpc", running)) as raw:
        raw.send(MODEL, visit(secret, history))
    before = scrape(running.metrics_url)
    samples = settled(running.metrics_url, lambda s: s.samples.keys() == before.samples.keys())
    assert not any(secret in f"{name}{labels}" for name, labels in samples.samples)


def test_a_reload_begins_anew_and_totals_go_on(model: tuple[HSTU, Path], tmp_path: Path) -> None:
    """Triton keeps a model's series when it is loaded again: totals never fall, and gauges are the new model's."""
    history = worlds.random_history(np.random.default_rng(2), 40)

    def known(samples: Scrape) -> float:
        return samples.value("mtserve_users", MODEL, tier="known")

    def ok(samples: Scrape) -> float:
        return samples.value("mtserve_requests_total", MODEL, outcome="ok")

    with serving(tmp_path, model[1], extra_arguments=EXPLICIT) as server, closing(Raw("grpc", server)) as raw:
        for user in (1, 2, 3):
            raw.send(MODEL, visit(user, history))
        settled(server.metrics_url, lambda s: ok(s) == 3 and known(s) == 3)
        (tmp_path / MODEL / "1" / "model.py").touch()
        raw.client.load_model(MODEL)
        raw.send(MODEL, visit(1, history))
        settled(server.metrics_url, lambda s: ok(s) == 4 and known(s) == 1)
        raw.client.unload_model(MODEL)
        settled(server.metrics_url, lambda s: known(s) == 0 and s.value("mtserve_engine_up", MODEL) == 0 and ok(s) == 4)


def test_a_server_without_metrics_serves(model: tuple[HSTU, Path], tmp_path: Path) -> None:
    """`--allow-metrics=false`: Triton takes them all the same, and shows them to nobody."""
    history = worlds.random_history(np.random.default_rng(3), 20)
    with (
        serving(tmp_path / "r", model[1], metrics=False) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        assert raw.send(MODEL, visit(1, history))["SCORES"].shape[1] == len(CANDIDATES)
        assert not [error for error in server.errors() if "metrics" in error]


def test_totals_are_exact_after_many_requests_at_once(running: EmbeddedServer) -> None:
    """Batches of many, from many threads: nothing is lost between the threads that count."""
    before = scrape(running.metrics_url)
    answered = threading.Semaphore(0)

    def live(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with closing(Raw("grpc", running)) as raw, suppress(InferenceServerException):
            for _ in range(50):
                history = worlds.random_history(rng, int(rng.integers(1, 40)))
                raw.send(MODEL, visit(1000 + int(rng.integers(0, 30)), history))
                answered.release()

    threads = [threading.Thread(target=live, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    start = before.value("mtserve_requests_total", MODEL, outcome="ok")
    samples = settled(
        running.metrics_url, lambda s: s.value("mtserve_requests_total", MODEL, outcome="ok") == start + 8 * 50
    )
    assert sum(answered.acquire(blocking=False) for _ in range(401)) == 400
    batches = samples.value("mtserve_batches_total", MODEL) - before.value("mtserve_batches_total", MODEL)
    assert 0 < batches <= 400
