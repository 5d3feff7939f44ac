"""Forgetting, Triton's own timeout, and cancelled calls, through the real server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.lively import CANDIDATES, MODEL, assert_scores, forget, serving, visit
from tests.server.raw import Raw, RawRequest, raw_request

users = iter(range(1, 10**9))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[HSTU, Path]:
    folder = tmp_path_factory.mktemp("lively")
    return worlds.lively_model(folder), folder


@pytest.fixture(scope="module")
def running(model: tuple[HSTU, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    knobs = {"zero_on_free": "true", "host_memory": "pageable", "max_candidates": "1000000"}
    with serving(tmp_path_factory.mktemp("repository"), model[1], knobs) as server:
        yield server


@pytest.fixture(params=["grpc", "http"])
def raw(request: pytest.FixtureRequest, running: EmbeddedServer) -> Iterator[Raw]:
    connection = Raw(request.param, running)
    yield connection
    connection.close()


@pytest.fixture
def grpc(running: EmbeddedServer) -> Iterator[Raw]:
    connection = Raw("grpc", running)
    yield connection
    connection.close()


def work(user: int, seconds_of: int = 100_000) -> RawRequest:
    """A request that keeps the engine busy for a second or so."""
    history = worlds.random_history(np.random.default_rng(user), 90)
    return raw_request(user, history.items, history.actions, np.tile(CANDIDATES, seconds_of // len(CANDIDATES)))


@pytest.mark.parametrize("name", ["number", "string"])
def test_a_forgotten_user_is_a_new_one(raw: Raw, model: tuple[HSTU, Path], name: str) -> None:
    number = next(users)
    user = number if name == "number" else f"user {number}"
    history = worlds.random_history(np.random.default_rng(number), 40)
    for found in (0, 40):
        info = assert_scores(raw.send(MODEL, visit(user, history)), model[0], history)
        assert info[0] + info[1] == found
    for _ in range(2):  # whom the server does not know it forgets as gladly
        answer = raw.send(MODEL, forget(user))
        assert answer["SCORES"].shape == (1, 0, 2)
        assert answer["CACHE_INFO"].tolist() == [[0, 0, 0, 0, 0]]
    with pytest.raises(InferenceServerException, match="tokens are needed from position 0"):
        raw.send(MODEL, visit(user, history, start=40))
    assert assert_scores(raw.send(MODEL, visit(user, history)), model[0], history) == [0, 0, 0, 40, 40]


def test_forgetting_says_what_is_wrong(raw: Raw) -> None:
    history = worlds.random_history(np.random.default_rng(1), 5)
    for request, said in (
        (visit(next(users), history, parameters={"forget": True}), "no history and no candidates"),
        (raw_request(next(users), *_nothing(), parameters={"forget": "perhaps"}), "must be true or false"),
    ):
        with pytest.raises(InferenceServerException, match=said):
            raw.send(MODEL, request)


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nobody = np.empty(0, dtype=np.int64)
    return nobody, nobody.astype(np.int32), nobody


def test_a_request_whose_time_is_over_is_not_computed(raw: Raw, model: tuple[HSTU, Path]) -> None:
    user = next(users)
    history = worlds.random_history(np.random.default_rng(user), 30)
    with pytest.raises(InferenceServerException, match="time was over"):
        infer(raw, visit(user, history), timeout=1)
    info = assert_scores(infer(raw, visit(user, history), timeout=60_000_000), model[0], history)
    assert info == [0, 0, 0, 30, 30], "the late one left nothing behind"


def infer(raw: Raw, request: RawRequest, **options: Any) -> dict[str, np.ndarray]:
    result = raw.client.infer(MODEL, raw._inputs(request.inputs), **raw._options(request), **options)
    return {name: result.as_numpy(name) for name in ("SCORES", "RANKING", "CACHE_INFO")}


def test_calls_cancelled_in_the_queue_harm_nobody(grpc: Raw, model: tuple[HSTU, Path]) -> None:
    """A long request occupies the engine; behind it calls are queued, and every other one is cancelled."""
    rng = np.random.default_rng(3)
    for _ in range(2):
        histories = {next(users): worlds.random_history(rng, int(rng.integers(5, 60))) for _ in range(16)}
        answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        busy = start(grpc, 0, work(next(users)), answers)
        calls = {user: start(grpc, user, visit(user, history), answers) for user, history in histories.items()}
        cancelled = set(list(calls)[::2])
        for user in cancelled:
            calls[user].cancel()
        outcomes = dict(answers.get(timeout=60) for _ in range(1 + len(calls)))
        assert isinstance(outcomes[0], dict), outcomes[0]
        for user, history in histories.items():
            if user in cancelled:
                assert "cancel" in str(outcomes[user]).lower()
            else:
                assert_scores(outcomes[user], model[0], history)
        for user, history in histories.items():
            assert_scores(grpc.send(MODEL, visit(user, history)), model[0], history)
        assert busy


def start(raw: Raw, key: int, request: RawRequest, answers: queue.SimpleQueue[tuple[int, object]]) -> Any:
    """Send without waiting; the call can be cancelled."""

    def done(result: Any, error: Exception | None) -> None:
        arrays = None if error else {name: result.as_numpy(name) for name in ("SCORES", "RANKING", "CACHE_INFO")}
        answers.put((key, error or arrays))

    return raw.client.async_infer(MODEL, raw._inputs(request.inputs), done, **raw._options(request))


def test_two_users_forgotten_while_others_visit(running: EmbeddedServer, model: tuple[HSTU, Path]) -> None:
    failures: list[BaseException] = []

    def live(seed: int, forgets: bool) -> None:
        raw, rng = Raw("grpc", running), np.random.default_rng(seed)
        try:
            user, history = next(users), worlds.random_history(rng, 10)
            for step in range(12):
                more = worlds.random_history(rng, 4)
                history = History(np.append(history.items, more.items), np.append(history.actions, more.actions))
                assert_scores(raw.send(MODEL, visit(user, history)), model[0], history)
                if forgets and step % 3 == 2:
                    raw.send(MODEL, forget(user))
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            failures.append(error)
        finally:
            raw.close()

    threads = [threading.Thread(target=live, args=(seed, seed < 2)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
