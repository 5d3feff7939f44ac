"""Anything at all that a server can hand to the model: every request is answered as docs/protocol.md says, alone.

The whole path, from Triton's request to its response: parsing, limits, the service's thread, the engine. An example is
a session of batches; right requests are mixed with wrong ones, and the rules (rules.py) say what must come of each. A
refusal has its code, an answer the shapes, the history's length and the scores of that very user's history. `make test`
runs a share; `pytest -m slow tests/serving` more than 100,000 requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import ACTIONS, ITEMS, History
from tests.serving import stub
from tests.serving.rules import TYPES, Expected, Known, Limits, Rules
from tests.serving.stub import InferenceResponse, Logger, Request

LIMITS = Limits(ITEMS, ACTIONS, events=40, candidates=12, id_bytes=20)
KNOBS = {
    "page_tokens": "4",
    "chunk_tokens": "8",
    "device_cache": "60 pages",
    "onload_buffer": "16 pages",
    "host_cache": "40 chunks",
    "pass_tokens": "64",
    "threads": "1",
    "max_events": str(LIMITS.events),
    "max_candidates": str(LIMITS.candidates),
    "max_user_id_bytes": str(LIMITS.id_bytes),
    "check_books": "true",
}
# The second stands for the digest of what the server knows by then.
DIGESTS = ['{"prefix_digest":"00000000000000aA"}', *["digest"] * 4]
# IDs that a log would show.
PEOPLE: list[int | str] = [70_000_001, 2**64 - 7, "70000001", "secret-person", "ü" * 10]
STRANGE_USERS = st.one_of(
    st.just(0), st.just(""), st.text(max_size=40), st.binary(max_size=6), st.integers(0, 2**64 - 1)
)
STRANGE_NUMBERS = st.one_of(
    st.sampled_from([-1, -(2**63), 2**63 - 1, 2**31 - 1, 2**31, ITEMS, ITEMS - 1, ACTIONS]),
    st.integers(-(2**31), 2**31),
)
STRANGE_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 3, 2**70, 1.5, "", "2", "-2", "+2", " 2", "²", "x", [], {}]),
    st.text(max_size=4),
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[HSTU, Path]:
    folder = tmp_path_factory.mktemp("weights")
    return worlds.lively_model(folder), folder


@pytest.fixture(scope="module")
def serving(weights: tuple[HSTU, Path]) -> Iterator[Any]:
    """The class of `model.py`, initialized as a server does."""
    with stub.installed():
        from mtserve_backend.serving import tensors
        from mtserve_backend.serving.triton_model import TritonPythonModel

        tensors.ASK_AFTER_S = -1.0  # a cancelled request has been so from the beginning
        knobs = KNOBS | {"model_dir": str(weights[1])}
        config = {"parameters": {key: {"string_value": value} for key, value in knobs.items()}}
        model = TritonPythonModel()
        arguments = {
            "model_name": "hstu",
            "model_version": "1",
            "model_repository": str(weights[1]),
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
        model.initialize(arguments)
        yield model
        model.finalize()


@st.composite
def right_requests(draw: st.DrawFn) -> Request:
    """Of people who are known to the server, more or less."""
    length = draw(st.integers(0, 12))
    tensors: dict[str, Any] = {
        "HISTORY_ITEMS": draw(st.lists(st.integers(0, ITEMS - 1), min_size=length, max_size=length)),
        "HISTORY_ACTIONS": draw(st.lists(st.integers(0, ACTIONS - 1), min_size=length, max_size=length)),
        "HISTORY_START": [draw(st.sampled_from([0, 0, 0, 1, 2, 3, 8, 20]))],
        "CANDIDATES": draw(st.lists(st.integers(0, ITEMS - 1), max_size=4)),
    }
    arrays = {name: np.array([tensors[name]], dtype=TYPES[name]).reshape(1, -1) for name in TYPES}
    parameters = draw(st.sampled_from(["", "", "{}", '{"top_k":2}', '{"top_k":"3"}', '{"other":1}', *DIGESTS]))
    return Request(draw(st.sampled_from([*PEOPLE[:1] * 5, *PEOPLE])), arrays, parameters)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A right one, spoilt in no, one or several places."""
    request = draw(right_requests())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        name = draw(st.sampled_from(list(TYPES)))
        array = request.tensors.get(name)
        spoil = draw(
            st.sampled_from(["value", "length", "shape", "type", "missing", "user", "parameters", "late", "forget"])
        )
        if spoil == "value" and array is not None and array.size and array.dtype.kind == "i":
            limits = np.iinfo(array.dtype)
            value = min(max(draw(STRANGE_NUMBERS), limits.min), limits.max)
            array.reshape(-1)[draw(st.integers(0, array.size - 1))] = value
        elif spoil == "length" and array is not None:
            length = draw(st.sampled_from([0, 1, 2, LIMITS.candidates, LIMITS.candidates + 1, LIMITS.events + 1, 500]))
            request.tensors[name] = np.ones((1, length), dtype=array.dtype)
        elif spoil == "shape" and array is not None:
            shape = draw(st.sampled_from([(), (0,), (3,), (2, 2), (0, 3), (1, 1, 1)]))
            request.tensors[name] = np.zeros(shape, dtype=array.dtype)
        elif spoil == "type" and array is not None:
            request.tensors[name] = array.astype(
                draw(st.sampled_from(["int8", "int32", "int64", "uint64", "float32", "O"]))
            )
        elif spoil == "missing":
            request.tensors.pop(name, None)
        elif spoil == "user":
            request.user = draw(STRANGE_USERS)
        elif spoil == "parameters":
            key, value = draw(st.sampled_from(["top_k", "forget", "prefix_digest", "other"])), draw(STRANGE_VALUES)
            text = draw(st.sampled_from(["[]", "1", "null", "{", '{"top_k"', "\x00", ""]))
            request.parameter_text = draw(st.sampled_from([json.dumps({key: value}), json.dumps({key: value}), text]))
        elif spoil == "late":
            request.cancelled = draw(st.booleans())
        elif spoil == "forget":
            request.parameter_text = '{"forget":true}'
            if draw(st.booleans()):
                for empty in ("HISTORY_ITEMS", "HISTORY_ACTIONS", "CANDIDATES"):
                    request.tensors[empty] = np.zeros((1, 0), dtype=TYPES[empty])
                request.tensors["HISTORY_START"] = np.zeros((1, 1), dtype=np.int64)
    return request


SESSIONS = st.lists(st.lists(requests(), min_size=1, max_size=6), min_size=1, max_size=4)


def run(session: list[list[Request]], serving: Any, model: HSTU) -> int:
    """Serve the session; how many requests it held."""
    rules = Rules(LIMITS, model.window.start)
    try:
        for batch in session:
            expected = [expect(rules, request) for request in batch]
            responses = serving.execute(batch)
            assert len(responses) == len(batch)
            for request, expects, response in zip(batch, expected, responses, strict=True):
                check(request, expects, response, model)
    finally:  # the next session finds nobody
        for user in {user for batch in session for request in batch if (user := readable(request))}:
            forgotten(serving, user)
    return sum(len(batch) for batch in session)


def expect(rules: Rules, request: Request) -> Expected:
    if request.parameter_text == "digest":
        rules.state_digest(request)
    return rules.expect(request)


def readable(request: Request) -> int | str | None:
    """The ID, if it is one."""
    try:
        return request.correlation_id()
    except UnicodeDecodeError:
        return None


def forgotten(serving: Any, user: int | str) -> None:
    arrays = {name: np.zeros((1, int(name == "HISTORY_START")), dtype=dtype) for name, dtype in TYPES.items()}
    serving.execute([Request(user, arrays, '{"forget":true}')])


def check(request: Request, expected: Expected, response: InferenceResponse, model: HSTU) -> None:
    if expected.code is not None:
        assert response.error is not None, (request, expected)
        assert response.error.code() == expected.code, (request, expected, response.error.message())
        assert 10 < len(response.error.message()) < 400
        if expected.code == "NOT_FOUND":
            assert response.error.message().endswith(f"tokens are needed from position {expected.position}")
        return
    assert response.error is None, (request, expected, response.error and response.error.message())
    candidates = request.tensors["CANDIDATES"][0]
    known = expected.history or Known()
    info = response.output("CACHE_INFO")
    assert info.shape == (1, 5)
    assert info[0, 4] == known.stop
    assert info[0, :4].sum() == len(known.events)
    assert (info >= 0).all()
    scores = response.output("SCORES")
    assert scores.shape == (1, len(candidates), 2)
    ranking = response.output("RANKING")
    kept = len(candidates) if expected.top_k is None else min(expected.top_k, len(candidates))
    assert ranking.shape == (1, kept)
    assert set(ranking[0].tolist()) <= set(candidates.tolist())
    if len(candidates):
        history = whole(known)
        wanted = worlds.reference(model, history, candidates)
        difference = np.abs(scores[0] - wanted).max()
        # A lone candidate whose score is near zero says little of how large this history's scores are: all items do.
        scale = np.abs(wanted).max()
        if difference > worlds.TOLERANCE * scale:
            scale = np.abs(worlds.reference(model, history, np.arange(ITEMS))).max()
        assert difference <= worlds.TOLERANCE * scale


def whole(known: Known) -> History:
    """What lies before the window is nothing to the model."""
    padded = [(0, 0)] * known.start + list(known.events)
    events = np.array(padded, dtype=np.int64).reshape(-1, 2)
    return History(events[:, 0], events[:, 1].astype(np.int32))


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(session=SESSIONS)
def test_any_request_is_answered_as_the_protocol_says(
    serving: Any, weights: tuple[HSTU, Path], session: list[list[Request]]
) -> None:
    run(session, serving, weights[0])


def test_no_users_id_is_logged(serving: Any) -> None:
    """By what the sessions above have met, which includes every refusal there is."""
    assert Logger.lines
    for line in Logger.lines:
        assert not any(str(person) in line for person in PEOPLE), line


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_hundred_thousand_requests(serving: Any, weights: tuple[HSTU, Path]) -> None:
    total = 0

    @settings(max_examples=15_000, suppress_health_check=list(HealthCheck), database=None, derandomize=False)
    @given(session=SESSIONS)
    def search(session: list[list[Request]]) -> None:
        nonlocal total
        total += run(session, serving, weights[0])

    while total < 100_000:
        search()
    print(f"\n{total} requests")  # noqa: T201 - for whoever runs it with -s
    test_no_users_id_is_logged(serving)
