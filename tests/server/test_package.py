"""A packaged model on a server whose Python has torch, numpy and nvtx only; and new weights for one that is running."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend.commands.package import PackageOptions, package
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.bare import bare_environment, missing
from tests.server.lively import KNOBS, MODEL, assert_scores, visit
from tests.server.raw import Raw
from tests.server.test_control import start, work
from tests.server.test_embedded import children, within

EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]
ABSENT = ("pydantic", "safetensors", "mtserve_backend", "mtserve_client", "tritonclient", "google", "yaml", "rich")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    interpreter = bare_environment(tmp_path_factory.mktemp("bare") / "environment")
    assert missing(interpreter, (*ABSENT, "torch", "numpy", "nvtx")) == set(ABSENT)
    return interpreter


@pytest.fixture
def first(tmp_path: Path) -> tuple[HSTU, Path]:
    (tmp_path / "first").mkdir()
    return worlds.lively_model(tmp_path / "first"), tmp_path / "first"


@pytest.fixture
def second(tmp_path: Path) -> tuple[HSTU, Path]:
    (tmp_path / "second").mkdir()
    return worlds.lively_model(tmp_path / "second", seed=5), tmp_path / "second"


@contextmanager
def serving(repository: Path, bare: Path, log: Path) -> Iterator[tuple[EmbeddedServer, Raw]]:
    with (
        EmbeddedServer(repository, exit_timeout=20, interpreter=bare, extra_arguments=EXPLICIT, log_file=log) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        yield server, raw


def options(weights: Path, out: Path, **knobs: str) -> PackageOptions:
    return PackageOptions(weights, out, MODEL, settings=KNOBS | {"max_candidates": "1000000"} | knobs)


def test_it_loads_where_nothing_of_ours_is_installed(first: tuple[HSTU, Path], bare: Path, tmp_path: Path) -> None:
    model, weights = first
    package(options(weights, tmp_path / "models"))
    weights.rename(tmp_path / "gone")
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    history = worlds.random_history(np.random.default_rng(1), 40)
    with serving(tmp_path / "elsewhere", bare, tmp_path / "log") as (_, raw):
        for found in (0, 40):
            info = assert_scores(raw.send(MODEL, visit(1, history)), model, history)
            assert info[0] + info[1] == found
    text = (tmp_path / "log").read_text()
    assert f"({bare.parent.parent}" in text, "the start-up line names the environment"
    assert "finalized" in text


def test_new_weights_take_over_in_a_running_server(
    first: tuple[HSTU, Path], second: tuple[HSTU, Path], bare: Path, tmp_path: Path
) -> None:
    """What is in flight finishes with the weights it met; nothing is ever scored from the states of the old ones."""
    models = tmp_path / "models"
    package(options(first[1], models))
    histories = {user: worlds.random_history(np.random.default_rng(user), 20 + user) for user in range(1, 9)}
    with serving(models, bare, tmp_path / "log") as (server, raw):
        for user, history in histories.items():
            assert_scores(raw.send(MODEL, visit(user, history)), first[0], history)
        package(options(second[1], models))
        assert_scores(raw.send(MODEL, visit(1, histories[1])), first[0], histories[1])
        answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        busy = [start(raw, -n, work(100 + n), answers) for n in range(3)]
        for user, history in histories.items():
            start(raw, user, visit(user, history), answers)
        raw.client.load_model(MODEL)
        outcomes = dict(answers.get(timeout=60) for _ in range(len(busy) + len(histories)))
        assert all(isinstance(answer, dict) for answer in outcomes.values()), outcomes
        for user, history in histories.items():
            assert_of_one(outcomes[user], (first[0], second[0]), history)
        for user, history in histories.items():
            with pytest.raises(InferenceServerException, match="tokens are needed from position 0"):
                raw.send(MODEL, visit(user, history, start=len(history)))
            assert assert_scores(raw.send(MODEL, visit(user, history)), second[0], history)[:3] == [0, 0, 0]
        assert within(20, lambda: len(children(server.pid)) == 1), "the old stub ends"


def test_unload_and_load_under_visits(
    first: tuple[HSTU, Path], second: tuple[HSTU, Path], bare: Path, tmp_path: Path
) -> None:
    """The way for a machine without room for two sets of pools: answers are right or refused, before and after."""
    models = tmp_path / "models"
    package(options(first[1], models))
    swapped, failures, refused = threading.Event(), [], []
    counts = {"old": 0, "new": 0}
    with serving(models, bare, tmp_path / "log") as (server, raw):

        def live(seed: int) -> None:
            rng = np.random.default_rng(seed)
            history = worlds.random_history(rng, 12)
            try:
                with closing(Raw("grpc", server)) as own:
                    while counts["new"] < 40:
                        more = worlds.random_history(rng, 1)
                        if len(history) < 60:
                            history = History(
                                np.append(history.items, more.items), np.append(history.actions, more.actions)
                            )
                        after = swapped.is_set()
                        try:
                            answer = own.send(MODEL, visit(seed, history))
                        except InferenceServerException as error:
                            refused.append(str(error))
                            time.sleep(0.02)
                            continue
                        which = assert_of_one(answer, (second[0],) if after else (first[0], second[0]), history)
                        counts["new" if after or which else "old"] += 1
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                failures.append(error)
                counts["new"] = 10**6

        threads = [threading.Thread(target=live, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        assert within(30, lambda: counts["old"] > 20)
        package(options(second[1], models))
        raw.client.unload_model(MODEL)
        assert within(20, lambda: not children(server.pid)), "the old stub ends"
        raw.client.load_model(MODEL)
        swapped.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures
    assert counts["new"] >= 40
    assert all("no available versions" in text or "UNAVAILABLE" in text or "not ready" in text for text in refused)


def assert_of_one(answer: object, models: tuple[HSTU, ...], history: History) -> int:
    """The answer's scores are one of these models' scores; which."""
    wrong: list[AssertionError] = []
    for index, model in enumerate(models):
        try:
            assert_scores(answer, model, history)
        except AssertionError as error:
            wrong.append(error)
        else:
            return index
    raise wrong[0]
