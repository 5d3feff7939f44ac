"""Answers and statuses: what the server's tensors and codes become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mtserve_client import (
    CacheInfo,
    DeadlineExceeded,
    Events,
    HistoryNeeded,
    InvalidRequest,
    ModelNotFound,
    MtserveError,
    ServerFault,
    ServerUnavailable,
)
from mtserve_client.errors import from_grpc, from_http
from mtserve_client.protocol import Call, decode

NEEDED = "tokens are needed from position 12"
UNLOADED = "Request for unknown model: 'x' has no available versions"  # what a server says that is stopping


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("NOT_FOUND", NEEDED, HistoryNeeded),
        ("NOT_FOUND", "Request for unknown model: 'x' is not found", ModelNotFound),
        ("NOT_FOUND", UNLOADED, ServerUnavailable),
        ("INVALID_ARGUMENT", "", InvalidRequest),
        ("UNIMPLEMENTED", "", InvalidRequest),
        ("UNAVAILABLE", "", ServerUnavailable),
        ("CANCELLED", "", ServerUnavailable),
        ("DEADLINE_EXCEEDED", "", DeadlineExceeded),
        ("INTERNAL", "", ServerFault),
        ("UNKNOWN", "", ServerFault),
    ],
)
def test_grpc_statuses(status: str, message: str, expected: type[MtserveError]) -> None:
    assert type(from_grpc(f"StatusCode.{status}", message)) is expected


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (404, NEEDED, HistoryNeeded),
        (400, NEEDED, HistoryNeeded),
        (404, "no such model", ModelNotFound),
        (400, "Request for unknown model: 'x' is not found", ModelNotFound),
        (400, UNLOADED, ServerUnavailable),
        (404, UNLOADED, ServerUnavailable),
        (400, "wrong lengths", InvalidRequest),
        (501, "", InvalidRequest),
        (503, "", ServerUnavailable),
        (429, "", ServerUnavailable),
        (500, "", ServerFault),
    ],
)
def test_http_statuses(status: int, message: str, expected: type[MtserveError]) -> None:
    assert type(from_http(status, message)) is expected


def test_the_position_is_read_from_the_message() -> None:
    error = from_grpc("StatusCode.NOT_FOUND", f"[user 5] {NEEDED}: send them")
    assert isinstance(error, HistoryNeeded)
    assert error.position == 12


def test_errors_are_what_a_caller_would_catch() -> None:
    for kind, builtin in (
        (InvalidRequest, ValueError),
        (ServerUnavailable, ConnectionError),
        (DeadlineExceeded, TimeoutError),
    ):
        assert issubclass(kind, builtin)
        assert issubclass(kind, MtserveError)


def answer(**changes: Any) -> Any:
    outputs: dict[str, Any] = {
        "SCORES": np.ones((1, 3, 2), np.float32),
        "RANKING": np.array([[7, 5]]),
        "CACHE_INFO": np.array([[30, 10, 5, 5, 50]], np.int32),
    }
    return {**outputs, **changes}.get


def test_an_answer_is_decoded_into_arrays_of_its_own() -> None:
    ranking = decode(answer(), 3)
    assert (ranking.scores.shape, ranking.scores.dtype) == ((3, 2), np.float32)
    assert ranking.ranking.tolist() == [7, 5]
    assert ranking.cache == CacheInfo(device=30, host=10, recomputed=5, new=5, history_length=50)
    assert ranking.cache.hit_ratio == pytest.approx(0.8)
    ranking.scores[0, 0] = 9.0


def test_an_empty_history_hits_nothing() -> None:
    assert CacheInfo(0, 0, 0, 0, 0).hit_ratio == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SCORES": None}, "holds no SCORES"),
        ({"SCORES": np.ones((1, 3, 2))}, "SCORES came as float64"),
        ({"SCORES": np.ones((1, 2, 2), np.float32)}, "unexpected shape for 3 candidates"),
        ({"SCORES": np.ones((3, 2), np.float32)}, "SCORES came as"),
        ({"CACHE_INFO": np.zeros((1, 4), np.int32)}, "unexpected shape"),
    ],
)
def test_what_is_not_the_protocol_is_a_fault(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ServerFault, match=words):
        decode(answer(**changes), 3)


def test_a_call_becomes_four_tensors_with_a_batch_dimension() -> None:
    class Input:
        def __init__(self, name: str, shape: list[int], datatype: str) -> None:
            self.said = (name, shape, datatype)

        def set_data_from_numpy(self, values: Any) -> None:
            assert list(values.shape) == self.said[1]
            assert values.dtype == {"INT64": np.int64, "INT32": np.int32}[self.said[2]]

    call = Call(5, Events.empty(), 0, np.array([1, 2]), top_k=2)
    assert [tensor.said for tensor in call.inputs(Input)] == [
        ("HISTORY_ITEMS", [1, 0], "INT64"),
        ("HISTORY_ACTIONS", [1, 0], "INT32"),
        ("HISTORY_START", [1, 1], "INT64"),
        ("CANDIDATES", [1, 2], "INT64"),
    ]
    assert call.parameters == {"top_k": 2}
