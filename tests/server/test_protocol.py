"""docs/protocol.md against the real server, over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend import repository
from mtserve_backend.cache.digest import digest
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.raw import Raw, RawRequest, raw_request

CANDIDATES = np.arange(0, worlds.ITEMS, 4)
NOBODY = np.empty(0, dtype=np.int64)
KNOBS = {
    "page_tokens": "4",
    "chunk_tokens": "8",
    "device_cache": "60 pages",
    "onload_buffer": "16 pages",
    "host_cache": "40 chunks",
    "max_candidates": "4000",
    "max_events": "500",
    "threads": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[HSTU, Path]:
    folder = tmp_path_factory.mktemp("lively")
    return worlds.lively_model(folder), folder


@pytest.fixture(scope="module")
def lively_server(model: tuple[HSTU, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("lively_repository")
    for mode in ("hierarchical", "device", "recompute"):
        repository.write_model(folder, mode, model[1], KNOBS | {"cache_mode": mode})
    with EmbeddedServer(folder) as running:
        yield running


@pytest.fixture(scope="module", params=["grpc", "http"])
def raw(request: pytest.FixtureRequest, lively_server: EmbeddedServer) -> Iterator[Raw]:
    connection = Raw(request.param, lively_server)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def grpc(lively_server: EmbeddedServer) -> Iterator[Raw]:
    connection = Raw("grpc", lively_server)
    yield connection
    connection.close()


users = iter(range(1000, 10**9))


def visit(user: int | str, history: History, candidates: np.ndarray = CANDIDATES, start: int = 0, **options: object):
    return raw_request(user, history.items[start:], history.actions[start:], candidates, start, **options)


def assert_answer(answer: object, model: HSTU, history: History, candidates: np.ndarray = CANDIDATES) -> np.ndarray:
    assert isinstance(answer, dict), answer
    expected = worlds.reference(model, history, candidates)
    assert answer["SCORES"].dtype == np.float32
    assert answer["SCORES"].shape == (1, *expected.shape)
    assert np.abs(answer["SCORES"][0] - expected).max() <= worlds.TOLERANCE * np.abs(expected).max()
    info = answer["CACHE_INFO"]
    assert info.shape == (1, 5)
    assert info[0, :4].sum() == len(history)
    assert info[0, 4] == len(history)
    return info[0]


def refused(raw: Raw, request: RawRequest, mode: str = "hierarchical") -> InferenceServerException:
    with pytest.raises(InferenceServerException) as refusal:
        raw.send(mode, request)
    return refusal.value


@pytest.mark.parametrize("mode", ["hierarchical", "device", "recompute"])
@pytest.mark.parametrize("kind_of_id", ["integer", "string", "128 characters"])
def test_whole_history_then_delta_then_nothing_new(
    raw: Raw, model: tuple[HSTU, Path], mode: str, kind_of_id: str
) -> None:
    number = next(users)
    user = {"integer": number, "string": f"user-{number}", "128 characters": f"{number}".rjust(128, "x")}[kind_of_id]
    history = worlds.random_history(np.random.default_rng(number), 40)
    first = History(history.items[:33], history.actions[:33])
    info = assert_answer(raw.send(mode, visit(user, first)), model[0], first)
    assert info.tolist() == [0, 0, 0, 33, 33]
    cached = 0 if mode == "recompute" else 1
    info = assert_answer(raw.send(mode, visit(user, history, start=30)), model[0], history)
    assert info.tolist() == [33 * cached, 0, 33 * (1 - cached), 7, 40]
    info = assert_answer(raw.send(mode, visit(user, history, start=40)), model[0], history)
    assert info.tolist() == [40 * cached, 0, 40 * (1 - cached), 0, 40]
    info = assert_answer(raw.send(mode, visit(user, history)), model[0], history)
    assert info.tolist() == [40 * cached, 0, 40 * (1 - cached), 0, 40]


def test_candidates_none_one_and_thousands(raw: Raw, model: tuple[HSTU, Path]) -> None:
    user = next(users)
    history = worlds.random_history(np.random.default_rng(user), 25)
    warmed = raw.send("hierarchical", visit(user, history, NOBODY))
    assert warmed["SCORES"].shape == (1, 0, 2)
    assert warmed["RANKING"].shape == (1, 0)
    one = np.array([17])
    assert_answer(raw.send("hierarchical", visit(user, history, one)), model[0], history, one)
    many = np.tile(np.arange(worlds.ITEMS), 60)
    answer = raw.send("hierarchical", visit(user, history, many))
    expected = worlds.reference(model[0], history, np.arange(worlds.ITEMS))
    assert np.abs(answer["SCORES"][0] - np.tile(expected, (60, 1))).max() <= worlds.TOLERANCE * np.abs(expected).max()
    assert answer["RANKING"].shape == (1, len(many))


def test_an_empty_history_is_a_new_user(raw: Raw, model: tuple[HSTU, Path]) -> None:
    user = next(users)
    empty = History(NOBODY, NOBODY.astype(np.int32))
    assert_answer(raw.send("hierarchical", visit(user, empty)), model[0], empty)


@pytest.mark.parametrize("mode", ["hierarchical", "recompute"])
def test_a_delta_with_a_digest_continues_no_other_history(raw: Raw, model: tuple[HSTU, Path], mode: str) -> None:
    """The two histories differ in one token, which no delta sends."""
    user, rng = next(users), np.random.default_rng(5)
    old = worlds.random_history(rng, 40)
    new = History(np.concatenate((old.items, [5, 6])), np.concatenate((old.actions, [1, 0])).astype(np.int32))
    new.items[3] = (old.items[3] + 1) % worlds.ITEMS
    digests = [f"{digest(0, history.items[:38], history.actions[:38]):016x}" for history in (old, new)]
    raw.send(mode, visit(user, old))
    delta = visit(user, new, start=38, parameters={"prefix_digest": digests[1]})
    error = refused(raw, delta, mode)
    assert "knows another history before it; tokens are needed from position 0" in str(error)
    assert_answer(raw.send(mode, visit(user, new)), model[0], new)
    assert_answer(raw.send(mode, delta), model[0], new)
    refused(raw, visit(user, new, start=38, parameters={"prefix_digest": digests[0]}), mode)
    shouted = visit(user, new, start=38, parameters={"prefix_digest": digests[1].upper()})
    assert_answer(raw.send(mode, shouted), model[0], new)


@pytest.mark.parametrize("top_k", [1, 3, 1000])
def test_top_k_bounds_the_ranking(raw: Raw, top_k: int) -> None:
    user = next(users)
    history = worlds.random_history(np.random.default_rng(user), 10)
    answer = raw.send("hierarchical", visit(user, history, parameters={"top_k": top_k}))
    order = np.argsort(-answer["SCORES"][0, :, 0], kind="stable")
    assert answer["RANKING"][0].tolist() == CANDIDATES[order][:top_k].tolist()


def test_other_histories_than_the_cached_one_get_their_own_scores(raw: Raw, model: tuple[HSTU, Path]) -> None:
    user, rng = next(users), np.random.default_rng(3)
    history = worlds.random_history(rng, 50)
    changed = history.items.copy()
    changed[20] = (changed[20] + 1) % worlds.ITEMS
    order = np.arange(50)
    order[[5, 6]] = order[[6, 5]]
    for other in (
        history,
        History(np.delete(history.items, 25), np.delete(history.actions, 25)),
        history,
        History(changed, history.actions),
        History(history.items[order], history.actions[order]),
        History(history.items[:31], history.actions[:31]),
        worlds.random_history(rng, 44),
        history,
    ):
        assert_answer(raw.send("hierarchical", visit(user, other)), model[0], other)


def test_sessions_kept_open_get_the_same_scores(raw: Raw, model: tuple[HSTU, Path]) -> None:
    rng = np.random.default_rng(4)
    for flags in (
        [(True, True)] * 4,
        [(True, False), (False, False), (False, False), (False, True)],
        [(True, False), (True, False), (True, False), (False, True)],
    ):
        user, history = next(users), worlds.random_history(rng, 30)
        for step, (start, end) in enumerate(flags):
            grown = History(history.items[: 21 + 3 * step], history.actions[: 21 + 3 * step])
            request = visit(
                user,
                grown,
                start=0 if step == 0 else 15,
            )
            request.start, request.end = start, end
            assert_answer(raw.send("hierarchical", request), model[0], grown)


def spoil(request: RawRequest, name: str, array: np.ndarray) -> RawRequest:
    request.inputs[name] = array
    return request


def bad_requests() -> dict[str, tuple[RawRequest, list[str]]]:
    """Each with what its error must mention."""
    history = worlds.random_history(np.random.default_rng(5), 12)
    long = worlds.random_history(np.random.default_rng(6), 501)

    def fresh(**options: object) -> RawRequest:
        return visit(next(users), history, **options)

    unknown = history.items.copy()
    unknown[7] = worlds.ITEMS
    no_candidates = fresh()
    del no_candidates.inputs["CANDIDATES"]
    unstarted = fresh()
    unstarted.start = False
    return {
        "unknown item": (spoil(fresh(), "HISTORY_ITEMS", unknown[None]), ["HISTORY_ITEMS[7]", "60", "0..59"]),
        "negative item": (spoil(fresh(), "CANDIDATES", np.array([[3, -1]])), ["CANDIDATES[1]", "-1"]),
        "unknown action": (
            spoil(fresh(), "HISTORY_ACTIONS", np.full((1, 12), 4, np.int32)),
            ["HISTORY_ACTIONS[0]", "0..3"],
        ),
        "wrong length of actions": (
            spoil(fresh(), "HISTORY_ACTIONS", np.zeros((1, 11), np.int32)),
            ["12 events", "11"],
        ),
        "wrong dtype": (
            spoil(fresh(), "HISTORY_ITEMS", history.items[None].astype(np.int32)),
            ["HISTORY_ITEMS", "INT64"],
        ),
        "missing input": (no_candidates, ["input"]),
        "negative position": (spoil(fresh(), "HISTORY_START", np.array([[-3]])), ["HISTORY_START", "-3"]),
        "two positions": (spoil(fresh(), "HISTORY_START", np.array([[1, 2]])), ["HISTORY_START"]),
        "huge position": (spoil(fresh(), "HISTORY_START", np.array([[2**62]])), ["positions"]),
        "gap": (spoil(fresh(), "HISTORY_START", np.array([[5]])), ["needed from position 0"]),
        "batch of two": (spoil(fresh(), "CANDIDATES", np.zeros((2, 3), np.int64)), ["batch"]),
        "too many candidates": (spoil(fresh(), "CANDIDATES", np.zeros((1, 4001), np.int64)), ["4001", "4000"]),
        "too many events": (visit(next(users), long), ["501", "500"]),
        "top_k of nought": (fresh(parameters={"top_k": 0}), ["top_k"]),
        "top_k of words": (fresh(parameters={"top_k": "many"}), ["top_k", "many"]),
        "a digest of words": (fresh(start=2, parameters={"prefix_digest": "xyz"}), ["prefix_digest", "16 hexadecimal"]),
        "a number as a digest": (fresh(start=2, parameters={"prefix_digest": 7}), ["prefix_digest", "16 hexadecimal"]),
        "a digest of nothing": (fresh(parameters={"prefix_digest": "1" * 16}), ["prefix_digest", "HISTORY_START 0"]),
        "no ID": (visit(0, history), ["correlation ID"]),
        "no START": (unstarted, ["START"]),
    }


@pytest.mark.parametrize("name", list(bad_requests()))
def test_bad_requests_are_told_what_is_wrong(raw: Raw, model: tuple[HSTU, Path], name: str) -> None:
    request, mentions = bad_requests()[name]
    text = str(refused(raw, request))
    for mention in mentions:
        assert mention.lower() in text.lower()
    user = next(users)
    history = worlds.random_history(np.random.default_rng(user), 12)
    assert_answer(raw.send("hierarchical", visit(user, history)), model[0], history)


def test_good_requests_of_a_batch_do_not_suffer_from_bad_ones(grpc: Raw, model: tuple[HSTU, Path]) -> None:
    rng = np.random.default_rng(8)
    for _ in range(3):
        histories = [worlds.random_history(rng, int(rng.integers(1, 60))) for _ in range(12)]
        good = [visit(next(users), history) for history in histories]
        bad = [request for request, _ in bad_requests().values()]
        mixed = [request for pair in zip(good, bad, strict=False) for request in pair]
        answers = grpc.send_many("hierarchical", mixed)
        for answer, history in zip(answers[::2], histories, strict=True):
            assert_answer(answer, model[0], history)
        assert all(isinstance(answer, str) for answer in answers[1::2])


def test_ragged_requests_form_batches(grpc: Raw, model: tuple[HSTU, Path]) -> None:
    def executions() -> tuple[int, int]:
        statistics = grpc.client.get_inference_statistics("hierarchical").model_stats[0]
        return statistics.inference_count, statistics.execution_count

    rng = np.random.default_rng(9)
    before = executions()
    for _ in range(5):
        histories = [worlds.random_history(rng, int(rng.integers(1, 80))) for _ in range(16)]
        answers = grpc.send_many("hierarchical", [visit(next(users), history) for history in histories])
        for answer, history in zip(answers, histories, strict=True):
            assert_answer(answer, model[0], history)
    requests, batches = (after - earlier for after, earlier in zip(executions(), before, strict=True))
    assert requests == 80
    assert batches <= 64, f"{requests} requests in {batches} executions"


def test_one_user_many_times_at_once_gets_each_history_its_scores(grpc: Raw, model: tuple[HSTU, Path]) -> None:
    rng = np.random.default_rng(10)
    user, history = next(users), worlds.random_history(rng, 70)
    lengths = rng.integers(1, 71, size=24)
    visits = [History(history.items[:n], history.actions[:n]) for n in lengths]
    answers = grpc.send_many("hierarchical", [visit(user, each) for each in visits])
    for answer, each in zip(answers, visits, strict=True):
        assert_answer(answer, model[0], each)


def test_scores_stay_right_while_users_are_evicted_and_come_back(raw: Raw, model: tuple[HSTU, Path]) -> None:
    rng = np.random.default_rng(11)
    histories = {next(users): worlds.random_history(rng, int(rng.integers(20, 60))) for _ in range(12)}
    found = np.zeros(5, dtype=int)
    for _ in range(60):
        user = int(rng.choice(list(histories)))
        more = worlds.random_history(rng, int(rng.integers(0, 3)))
        history = histories[user]
        if len(history) < 90:
            history = History(
                np.concatenate((history.items, more.items)), np.concatenate((history.actions, more.actions))
            )
        histories[user] = history
        found += assert_answer(raw.send("hierarchical", visit(user, history)), model[0], history)
    device, host, recomputed, new, _ = found
    assert min(device, host, recomputed, new) > 0


@pytest.mark.parametrize("top_k", ["--1", "²", "9" * 5000, "", "1.5"])
def test_unreadable_parameters_harm_nobody_else(grpc: Raw, model: tuple[HSTU, Path], top_k: str) -> None:
    rng = np.random.default_rng(12)
    histories = [worlds.random_history(rng, 30) for _ in range(6)]
    requests = [visit(next(users), history) for history in histories]
    requests.insert(3, visit(next(users), histories[0], parameters={"top_k": top_k}))
    answers = grpc.send_many("hierarchical", requests)
    refusal = answers.pop(3)
    assert isinstance(refusal, str)
    assert "top_k" in refusal
    for answer, history in zip(answers, histories, strict=True):
        assert_answer(answer, model[0], history)
