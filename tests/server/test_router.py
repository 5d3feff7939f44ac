"""`hstu_router` in front of two models in one real server: what goes in comes out as if the model had been asked."""

from __future__ import annotations

import itertools
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mtserve_client import Events, RankingClient
from mtserve_client.placement import digest, preference
from tritonclient.utils import InferenceServerException

from mtserve_backend import repository
from mtserve_backend.commands.package import PackageOptions, package
from mtserve_backend.embedded import EmbeddedServer, ServerError
from tests.server.bare import bare_environment, missing
from tests.server.processes import stub
from tests.server.raw import Raw, RawRequest, raw_request

MODELS = ("hstu_0", "hstu_1")
KNOBS = {
    "device_cache": "16MiB",
    "onload_buffer": "4MiB",
    "host_cache": "32MiB",
    "threads": "1",
    "max_candidates": "1000000",
}
CANDIDATES = np.array([50, 100, 181, 258])
_IDS = itertools.count(1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("repository")
    for model in MODELS:
        repository.write_model(folder, model, parameters=KNOBS)
    repository.write_router(folder, MODELS, {"max_waiting": "40"})
    explicit = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in (*MODELS, repository.ROUTER))]
    with EmbeddedServer(folder, exit_timeout=20, extra_arguments=explicit) as server:
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


def user_of(model: str, kind: type[int] | type[str] = int) -> int | str:
    """A user that no other test has and that belongs to `model`."""
    return next(
        user for number in _IDS for user in [kind(number)] if MODELS[preference(MODELS, digest(user))[0]] == model
    )


def visit(user: int | str, events: int = 40, **options: object) -> RawRequest:
    items = (np.arange(events) * 7) % 1600 + 1
    candidates = options.pop("candidates", CANDIDATES)
    return raw_request(user, items, np.ones(events), candidates, **options)  # type: ignore[arg-type]


def refusal(raw: Raw, model: str, request: RawRequest) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        raw.send(model, request)
    return caught.value.status(), caught.value.message()


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("model", MODELS)
def test_a_request_reaches_the_users_model_and_no_other(raw: Raw, model: str, kind: type[int] | type[str]) -> None:
    user = user_of(model, kind)
    routed = raw.send(repository.ROUTER, visit(user, parameters={"top_k": 2}))
    assert routed["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]
    direct = raw.send(model, visit(user, parameters={"top_k": 2}))
    assert direct["CACHE_INFO"].tolist() == [[40, 0, 0, 0, 40]]
    assert np.array_equal(routed["RANKING"], direct["RANKING"])
    assert routed["RANKING"].shape == (1, 2)
    assert np.allclose(routed["SCORES"], direct["SCORES"], rtol=1e-4, atol=1e-5)
    (other,) = set(MODELS) - {model}
    assert raw.send(other, visit(user))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]


def test_the_largest_id_and_empty_tensors_pass(raw: Raw) -> None:
    for user in (2**63 - 1, "é" * 64):
        answer = raw.send(repository.ROUTER, visit(user, events=0, candidates=np.empty(0)))
        assert answer["SCORES"].shape == (1, 0, 1)
        assert answer["RANKING"].shape == (1, 0)


def test_errors_come_as_the_model_gives_them(raw: Raw) -> None:
    user = user_of("hstu_0")
    wrong = [
        visit(user, start_position=9),
        visit(user, candidates=np.array([10**9])),
        visit(user, parameters={"top_k": 0}),
        visit(user, parameters={"forget": True}),
        visit(user, parameters={"prefix_digest": "1" * 16}),
        visit("a" * 129),
        visit(0),
        visit(user, start=False),
    ]
    answers = [(refusal(raw, "hstu_0", request), refusal(raw, repository.ROUTER, request)) for request in wrong]
    for direct, routed in answers:
        assert routed == (direct[0], direct[1].replace("'hstu_0'", f"'{repository.ROUTER}'"))
    assert len({direct[0] for direct, _ in answers}) == 3


def test_a_user_is_forgotten_through_the_router(raw: Raw) -> None:
    user = user_of("hstu_1")
    raw.send(repository.ROUTER, visit(user))
    nothing = visit(user, events=0, candidates=np.empty(0), parameters={"forget": True})
    raw.send(repository.ROUTER, nothing)
    assert raw.send("hstu_1", visit(user))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]


def test_the_client_speaks_to_a_router_as_to_a_model(running: EmbeddedServer) -> None:
    user = user_of("hstu_0")
    whole = Events.of([(item % 1600 + 1, 1) for item in range(60)])
    with (
        RankingClient(running.grpc_url, repository.ROUTER) as client,
        RankingClient(running.grpc_url, MODELS) as direct,
    ):
        client.warm(user, whole[:50])
        assert client.rank(user, new_events=whole[50:], candidates=CANDIDATES).cache.new == 10
        assert direct.rank(user, whole, candidates=CANDIDATES).cache.new == 0, "the client's own rule is the same"
        client.forget(user)
        assert direct.warm(user, whole).new == 60


def work(model: str) -> RawRequest:
    """What keeps a model busy for a good part of a second."""
    return visit(user_of(model), candidates=np.resize(np.arange(1, 1600), 200_000))


def test_a_slow_model_holds_up_nobody_elses_users(grpc: Raw, running: EmbeddedServer) -> None:
    busy = Raw("grpc", running)
    ended: list[float] = []
    began = time.monotonic()
    try:
        for _ in range(3):
            request = work("hstu_0")
            busy.client.async_infer(
                repository.ROUTER,
                busy._inputs(request.inputs),
                lambda result, error: ended.append(time.monotonic() - began),
                **busy._options(request),
            )
        answered = []
        for _ in range(5):
            grpc.send(repository.ROUTER, visit(user_of("hstu_1")))
            answered.append(time.monotonic() - began)
        deadline = time.monotonic() + 60
        while len(ended) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        busy.close()
    assert len(ended) == 3
    assert answered[-1] < ended[-1], "five requests of the other model, one after the other, did not wait for it"


def test_a_request_late_in_the_router_is_dropped_and_too_many_are_refused(grpc: Raw) -> None:
    jobs = [work("hstu_0") for _ in range(2)]
    crowd = [visit(user_of("hstu_0")) for _ in range(60)]
    answers = grpc.send_many(repository.ROUTER, [*jobs, *crowd])
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert 0 < len(refused) <= 22
    assert all("UNAVAILABLE" in text and "wait for hstu_0 already" in text for text in refused)
    late = visit(user_of("hstu_0"))
    with pytest.raises(InferenceServerException) as caught:
        grpc.client.infer(repository.ROUTER, grpc._inputs(late.inputs), timeout=1, **grpc._options(late))
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert "timeout was over" in caught.value.message()


def _control(running: EmbeddedServer, model: str, verb: str) -> None:
    request = urllib.request.Request(f"{running.http_url}/v2/repository/models/{model}/{verb}", data=b"{}")
    urllib.request.urlopen(request, timeout=60).close()


def test_a_model_that_is_unloaded_is_unavailable_and_found_again(grpc: Raw, running: EmbeddedServer) -> None:
    here, there = user_of("hstu_1"), user_of("hstu_0")
    _control(running, "hstu_1", "unload")
    status, message = "", ""
    for _ in range(100):  # the unload goes on after it is answered
        try:
            grpc.send(repository.ROUTER, visit(here))
        except InferenceServerException as error:
            status, message = error.status(), error.message()
            break
        time.sleep(0.05)
    assert status == "StatusCode.UNAVAILABLE", message
    assert grpc.send(repository.ROUTER, visit(there))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]
    _control(running, "hstu_1", "load")
    assert grpc.send(repository.ROUTER, visit(here))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]


def test_the_other_models_users_are_served_when_a_models_process_dies(grpc: Raw, running: EmbeddedServer) -> None:
    here, there = user_of("hstu_0"), user_of("hstu_1")
    grpc.send(repository.ROUTER, visit(here))
    os.kill(stub(running, "hstu_0"), signal.SIGKILL)
    status, message = refusal(grpc, repository.ROUTER, visit(here))
    assert status == "StatusCode.INTERNAL"
    assert "Stub process" in message
    assert grpc.send(repository.ROUTER, visit(there))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]
    for verb in ("unload", "load"):
        _control(running, "hstu_0", verb)
    assert grpc.send(repository.ROUTER, visit(here))["CACHE_INFO"].tolist() == [[0, 0, 0, 40, 40]]


def test_a_packaged_router_loads_where_nothing_of_ours_is_installed(tmp_path: Path) -> None:
    weights = repository.shipped() / repository.MODEL / "1" / "weights"
    package(PackageOptions(weights, tmp_path / "models", gpus=(0, 1)))
    python = bare_environment(tmp_path / "bare")
    assert missing(python, ("mtserve_backend", "pydantic")) == {"mtserve_backend", "pydantic"}
    explicit = ["--model-control-mode=explicit", f"--load-model={repository.ROUTER}"]
    with EmbeddedServer(tmp_path / "models", interpreter=python, exit_timeout=5, extra_arguments=explicit) as server:
        raw = Raw("grpc", server)
        status, message = refusal(raw, repository.ROUTER, visit(5))
        raw.close()
    assert status == "StatusCode.UNAVAILABLE", "its models need GPUs, and are not loaded"
    assert "hstu_1" in message


def test_a_router_never_calls_itself(tmp_path: Path) -> None:
    with pytest.raises(repository.RepositoryError, match="this router itself"):
        repository.write_router(tmp_path, ["hstu_0", repository.ROUTER])
    folder = repository.write_router(tmp_path, ["hstu_0"])
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('"hstu_0"', f'"{repository.ROUTER}"'))
    with pytest.raises(ServerError, match="this router itself"), EmbeddedServer(tmp_path):
        pass
