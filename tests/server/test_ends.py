"""How a server ends, and how a model ends inside it: in order, killed, replaced by other weights."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend.commands.scrape import scrape
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.server.lively import MODEL, assert_scores, serving, visit
from tests.server.raw import Raw
from tests.server.test_control import start, work
from tests.server.test_embedded import children, regions, within

EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]
BIG = {"max_candidates": "1000000"}


@pytest.fixture
def model(tmp_path: Path) -> tuple[HSTU, Path]:
    folder = tmp_path / "weights"
    folder.mkdir()
    return worlds.lively_model(folder), folder


def test_a_stop_answers_what_is_in_flight_and_finalizes(model: tuple[HSTU, Path], tmp_path: Path) -> None:
    rng, log = np.random.default_rng(1), tmp_path / "server.log"
    histories = {user: worlds.random_history(rng, int(rng.integers(5, 60))) for user in range(1, 13)}
    answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    with serving(tmp_path / "repository", model[1], BIG, log_file=log) as server, closing(Raw("grpc", server)) as raw:
        for user, history in histories.items():
            raw.send(MODEL, visit(user, history))
        start(raw, 0, work(99), answers)
        for user, history in histories.items():
            start(raw, user, visit(user, history), answers)
        time.sleep(0.2)
        os.kill(server.pid, signal.SIGTERM)
        outcomes = dict(answers.get(timeout=30) for _ in range(len(histories) + 1))
        assert server.wait(30) == 0
        assert regions(server.shm_prefix) == []
    assert isinstance(outcomes[0], dict), outcomes[0]
    for user, history in histories.items():
        assert_scores(outcomes[user], model[0], history)
    assert "finalized" in log.read_text()
    assert "left behind" not in log.read_text()
    assert "metrics could not be published" not in log.read_text()


def test_a_stop_among_visits_breaks_no_promise(model: tuple[HSTU, Path], tmp_path: Path) -> None:
    """Until the end every answer is right; what comes too late is told so."""
    errors: list[str] = []
    failures: list[BaseException] = []
    with serving(tmp_path / "repository", model[1]) as server:
        served = threading.Semaphore(0)

        def live(seed: int) -> None:
            rng = np.random.default_rng(seed)
            with closing(Raw("grpc", server)) as raw:
                try:
                    while True:
                        history = worlds.random_history(rng, int(rng.integers(1, 60)))
                        assert_scores(raw.send(MODEL, visit(int(rng.integers(1, 20)), history)), model[0], history)
                        served.release()
                except InferenceServerException as error:
                    errors.append(str(error))
                except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                    failures.append(error)

        threads = [threading.Thread(target=live, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            assert served.acquire(timeout=30)
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 15
        for thread in threads:
            thread.join(30)
        assert regions(server.shm_prefix) == []
    assert not failures, failures
    assert len(errors) == len(threads)
    # Triton unloads the model before it closes its ports.
    assert all("UNAVAILABLE" in error or "has no available versions" in error for error in errors), errors


def test_a_killed_stub_is_an_error_at_once_and_a_reload_brings_it_back(
    model: tuple[HSTU, Path], tmp_path: Path
) -> None:
    """docs/operations.md tells operators so: Triton starts no new stub, and stays ready."""
    history = worlds.random_history(np.random.default_rng(2), 40)
    answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    with (
        serving(tmp_path / "repository", model[1], extra_arguments=EXPLICIT) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        assert_scores(raw.send(MODEL, visit(1, history)), model[0], history)
        assert within(10, lambda: scrape(server.metrics_url).value("mtserve_batches_total", MODEL) == 1)
        (stub,) = children(server.pid)
        os.kill(stub, signal.SIGSTOP)  # so that it is at work, and stays at it, when it is killed
        for user in (1, 2):
            start(raw, user, visit(user, history), answers)
        os.kill(stub, signal.SIGKILL)
        begin = time.monotonic()
        for _ in range(2):
            assert "not healthy" in str(answers.get(timeout=20)[1])
        with pytest.raises(InferenceServerException, match=r"INTERNAL.* is not healthy"):
            raw.send(MODEL, visit(1, history))
        assert time.monotonic() - begin < 15
        assert raw.client.is_server_ready()
        assert raw.client.is_model_ready(MODEL)
        # What the alert MtserveModelDead relies on: Triton's failures grow, our totals stand still and do not say why.
        assert within(10, lambda: scrape(server.metrics_url).total("nv_inference_request_failure_total", MODEL) >= 3)
        assert scrape(server.metrics_url).value("mtserve_batches_total", MODEL) == 1
        assert scrape(server.metrics_url).value("mtserve_engine_up", MODEL) == 1
        raw.client.unload_model(MODEL)
        raw.client.load_model(MODEL)
        assert assert_scores(raw.send(MODEL, visit(1, history)), model[0], history) == [0, 0, 0, 40, 40]
        prefix = server.shm_prefix
    assert regions(prefix) == []


def test_new_weights_serve_no_old_state(model: tuple[HSTU, Path], tmp_path: Path) -> None:
    """lmdeploy 4917. A reload is a new process: it knows nobody, and no state survives to be mistaken."""
    history = worlds.random_history(np.random.default_rng(3), 40)
    with (
        serving(tmp_path / "repository", model[1], extra_arguments=EXPLICIT) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        for _ in range(2):
            assert_scores(raw.send(MODEL, visit(1, history)), model[0], history)
        changed = worlds.lively_model(model[1], seed=5)
        raw.client.load_model(MODEL)
        with pytest.raises(InferenceServerException, match="tokens are needed from position 0"):
            raw.send(MODEL, visit(1, history, start=40))
        assert assert_scores(raw.send(MODEL, visit(1, history)), changed, history) == [0, 0, 0, 40, 40]
        assert within(20, lambda: len(children(server.pid)) == 1), "the old stub ends"
