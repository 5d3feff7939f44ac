"""The engine's thread: deadlines, a bounded end, and what a dead engine answers. The engine is a real one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import Code, Outcome, RankAnswer, RankRequest, RequestError
from mtserve_backend.service import RankingService
from mtserve_backend.startup import build_engine
from mtserve_backend.transfer.streams import StreamBroken

PATIENCE_S = 20.0
Start = Callable[..., RankingService]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("service")
    weights.save(HSTU(HSTUConfig(layers=1, heads=1, head_dim=4, hidden=4, items=9, actions=2, max_history=64)), folder)
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    made: list[RankingService] = []

    def make(request_timeout_s: float = PATIENCE_S) -> RankingService:
        config = Config(device_cache="64 pages", onload_buffer="8 pages", host_cache="4 chunks", threads=1)
        made.append(RankingService(build_engine(config, folder), request_timeout_s))
        return made[-1]

    yield make
    for service in made:
        service.close(0.5)


def request(user: int = 1) -> RankRequest:
    tokens = Tokens(0, np.array([1, 2, 3]), np.zeros(3, dtype=np.int32))
    return RankRequest(user, tokens, np.array([4, 5]))


def unavailable(outcomes: list[object], count: int) -> bool:
    return len(outcomes) == count and all(
        isinstance(outcome, RequestError) and outcome.code is Code.UNAVAILABLE and "safe to send" in str(outcome)
        for outcome in outcomes
    )


def hold_compute(service: RankingService) -> threading.Event:
    """Keep the engine busy until the gate opens."""
    gate = threading.Event()
    service.engine.streams.compute.submit(lambda: gate.wait(PATIENCE_S) and None)
    return gate


def test_a_batch_is_answered_in_order(start: Start) -> None:
    outcomes = start().rank([request(1), request(2), request(1)])
    assert [isinstance(outcome, RankAnswer) for outcome in outcomes] == [True] * 3


def test_many_threads_are_answered_each_its_own(start: Start) -> None:
    service, answers = start(), {}

    def ask(user: int) -> None:
        answers[user] = service.rank([request(user)] * user)

    threads = [threading.Thread(target=ask, args=(user,)) for user in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {user: len(outcomes) for user, outcomes in answers.items()} == {user: user for user in range(1, 6)}


def test_past_the_deadline_every_request_is_unavailable(start: Start) -> None:
    service = start(request_timeout_s=0.2)
    gate = hold_compute(service)
    begin = time.monotonic()
    assert unavailable(service.rank([request(1), request(2)]), 2)
    assert time.monotonic() - begin < PATIENCE_S / 2
    gate.set()
    end = time.monotonic() + PATIENCE_S
    while not isinstance(service.rank([request(3)])[0], RankAnswer):
        assert time.monotonic() < end, "one late batch stopped the service"


def test_a_batch_given_up_while_it_waited_is_not_run(start: Start) -> None:
    service = start(request_timeout_s=0.2)
    gate = hold_compute(service)
    service.rank([request(1)])
    service.rank([request(77)])
    gate.set()
    end = time.monotonic() + PATIENCE_S
    while not isinstance(service.rank([request(3)])[0], RankAnswer):
        assert time.monotonic() < end
    assert 3 in service.engine.manager.users
    assert 77 not in service.engine.manager.users


def test_close_finishes_what_was_accepted(start: Start) -> None:
    service, answers = start(), []
    gate = hold_compute(service)
    asking = threading.Thread(target=lambda: answers.extend(service.rank([request()])))
    asking.start()
    end = time.monotonic() + PATIENCE_S
    while not len(service.engine.manager.users):
        assert time.monotonic() < end
    closing = threading.Thread(target=service.close, args=(PATIENCE_S,))
    closing.start()
    gate.set()
    for thread in (asking, closing):
        thread.join(PATIENCE_S)
    assert isinstance(answers[0], RankAnswer)
    assert all(stream.broken is not None for stream in service.engine.streams.all())


def test_close_is_bounded_with_work_in_flight(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    service = start(request_timeout_s=0.2)
    gate = hold_compute(service)
    service.rank([request()])
    begin = time.monotonic()
    with caplog.at_level(logging.ERROR):
        service.close(0.3)
    assert time.monotonic() - begin < PATIENCE_S / 2
    assert "left behind" in caplog.text
    gate.set()


def test_a_closed_service_answers_at_once(start: Start) -> None:
    service = start()
    service.close(PATIENCE_S)
    begin = time.monotonic()
    assert unavailable(service.rank([request(), request()]), 2)
    assert time.monotonic() - begin < 1.0
    service.close(PATIENCE_S)


class Fault(BaseException):
    """Something no engine expects: a bug."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", [RuntimeError("a bug"), TimeoutError("a bug"), Fault("a bug")], ids=repr)
def test_an_engine_that_fails_answers_its_batch_and_then_is_unavailable(
    start: Start, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    """The batch that met the bug gets an outcome for each request too: rank never raises."""
    service = start()

    def broken(visit: object) -> None:
        raise fault

    monkeypatch.setattr(service.engine.manager, "look_up", broken)
    outcomes = service.rank([request(1), request(2)])
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert isinstance(outcome, RequestError)
        assert outcome.code is Code.INTERNAL
        assert "a bug" in str(outcome)
    service._thread.join(PATIENCE_S)
    begin = time.monotonic()
    assert unavailable(service.rank([request(), request()]), 2)
    assert time.monotonic() - begin < 1.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_behind_a_failing_engine_is_answered_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service, gate, reached, answers = start(), threading.Event(), threading.Event(), []

    def broken(visit: object) -> None:
        reached.set()
        gate.wait(PATIENCE_S)
        raise Fault("a bug")

    monkeypatch.setattr(service.engine.manager, "look_up", broken)
    first = threading.Thread(target=lambda: answers.append(service.rank([request()])))
    first.start()
    assert reached.wait(PATIENCE_S)
    second = threading.Thread(target=lambda: answers.append(service.rank([request(), request()])))
    second.start()
    end = time.monotonic() + PATIENCE_S
    while service._inbox.empty():
        assert time.monotonic() < end
    begin = time.monotonic()
    gate.set()
    second.join(PATIENCE_S)
    first.join(PATIENCE_S)
    assert time.monotonic() - begin < PATIENCE_S / 2
    assert any(unavailable(outcomes, 2) for outcomes in answers)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_upkeep_that_fails_after_an_answer_does_not_take_the_answer_back(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = start()

    def broken() -> None:
        raise Fault("upkeep is broken")

    monkeypatch.setattr(service.engine, "idle", broken)
    with caplog.at_level(logging.ERROR):
        assert isinstance(service.rank([request()])[0], RankAnswer)
        service._thread.join(PATIENCE_S)
    assert "upkeep is broken" in caplog.text
    assert "InvalidStateError" not in caplog.text
    assert unavailable(service.rank([request()]), 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_upkeep_that_fails_while_idle_is_logged(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = start()

    def broken() -> None:
        raise Fault("upkeep is broken")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(service.engine, "idle", broken)
        service._thread.join(PATIENCE_S)
    assert not service._thread.is_alive()
    assert "upkeep is broken" in caplog.text


def test_between_two_batches_there_is_upkeep_however_soon_the_second_comes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, done = start(), []
    serve, idle = service.engine.serve, service.engine.idle
    monkeypatch.setattr(service.engine, "serve", lambda requests: (done.append("serve"), serve(requests))[1])
    monkeypatch.setattr(service.engine, "idle", lambda: (done.append("idle"), idle())[1])
    gate = hold_compute(service)
    threads = [threading.Thread(target=service.rank, args=([request(user)],)) for user in (1, 2, 3)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    served = [at for at, what in enumerate(done) if what == "serve"]
    assert len(served) == 3
    assert all("idle" in done[first:second] for first, second in pairwise(served))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_batch_before_which_upkeep_fails_is_answered(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start()

    def broken() -> None:
        raise Fault("upkeep is broken")

    gate = hold_compute(service)
    monkeypatch.setattr(service.engine, "idle", broken)
    answers: list[list[Outcome]] = []
    threads = [threading.Thread(target=lambda: answers.append(service.rank([request()]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == 2
    assert sum(isinstance(outcome, RankAnswer) for (outcome,) in answers) == 1


def test_it_is_ready_until_its_engine_or_what_computes_has_ended(start: Start) -> None:
    service = start()
    assert service.ready
    service.close(PATIENCE_S)
    assert not service.ready
    service = start()
    with suppress(StreamBroken):
        service.engine.streams.compute.submit(lambda: 1 // 0)
        service.engine.streams.compute.record().wait(PATIENCE_S)
    assert not service.ready
    service = start()
    service.engine.streams.offload.close(PATIENCE_S)
    assert service.ready, "without saving it still answers"


def test_it_is_looked_at_between_batches_and_when_idle(folder: Path) -> None:
    config = Config(device_cache="64 pages", onload_buffer="8 pages", host_cache="4 chunks", threads=1)
    looks = threading.Semaphore(0)
    service = RankingService(build_engine(config, folder), PATIENCE_S, looks.release)
    try:
        service.rank([request(1)])
        assert looks.acquire(timeout=PATIENCE_S)
        assert looks.acquire(timeout=PATIENCE_S), "and again though nothing comes"
    finally:
        service.close(PATIENCE_S)
