"""Triton requests to `RankRequest`s and outcomes to Triton responses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from mtserve_backend.admission import Limits
from mtserve_backend.cache.digest import HEX_DIGITS
from mtserve_backend.cache.history import Tokens
from mtserve_backend.cache.records import User
from mtserve_backend.ranking import Code, Outcome, RankRequest, RequestError
from mtserve_backend.serving import errors

# A request that has not begun so long after Triton handed it over may have been cancelled since. Asking takes 0.2 ms.
ASK_AFTER_S = 0.02

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_DIGEST = re.compile(rf"[0-9a-fA-F]{{{HEX_DIGITS}}}")

INPUTS: dict[str, type[np.signedinteger[Any]]] = {
    "HISTORY_ITEMS": np.int64,
    "HISTORY_ACTIONS": np.int32,
    "HISTORY_START": np.int64,
    "CANDIDATES": np.int64,
}


def parse(request: Any, limits: Limits) -> RankRequest:
    """Raises `RequestError`. What is returned owns its memory: a request's tensors die with `execute`."""
    views = {name: _vector(request, name, dtype) for name, dtype in INPUTS.items()}
    start = views["HISTORY_START"]
    if len(start) != 1:
        raise RequestError(Code.INVALID_ARG, f"HISTORY_START has {len(start)} values; it is one position, shape [1, 1]")
    limits.check_events(max(len(views["HISTORY_ITEMS"]), len(views["HISTORY_ACTIONS"])))
    limits.check_candidates(len(views["CANDIDATES"]))
    parameters = _parameters(request)
    tokens = Tokens(
        int(start[0]),
        np.array(views["HISTORY_ITEMS"]),
        np.array(views["HISTORY_ACTIONS"], dtype=np.int32),
        _prefix_digest(parameters),
    )
    timeout_us = request.timeout()
    return RankRequest(
        _user(request),
        tokens,
        np.array(views["CANDIDATES"]),
        _top_k(parameters),
        forget=_forget(parameters),
        deadline=time.monotonic() + timeout_us / 1e6 if timeout_us else None,
        cancelled=_Cancellation(request.is_cancelled),
    )


class _Cancellation:
    """Whether the client has given up, asked of Triton where that is worth a call to its process.

    Triton has looked when it took the request from its queue.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._from = time.monotonic() + ASK_AFTER_S

    def __call__(self) -> bool:
        return time.monotonic() >= self._from and self._ask()


def respond(outcome: Outcome, request: Any) -> Any:
    """The `InferenceResponse` to a request, per docs/protocol.md."""
    if isinstance(outcome, RequestError):
        code, message = outcome.code.value, str(outcome)
        return errors.response(code, errors.with_code(code, message) if errors.code_wanted(request) else message)
    cache = outcome.cache
    info = [cache.device, cache.host, cache.recomputed, cache.new, cache.history_length]
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor("SCORES", outcome.scores[np.newaxis]),
            pb_utils.Tensor("RANKING", outcome.ranking[np.newaxis]),
            pb_utils.Tensor("CACHE_INFO", np.array([info], dtype=np.int32)),
        ]
    )


def _vector(request: Any, name: str, dtype: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    """A view `[n]` of the input, of its own type."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise RequestError(Code.INVALID_ARG, f"input {name} is missing; an empty one has shape [1, 0]")
    array = tensor.as_numpy()
    if array.dtype != dtype:
        raise RequestError(Code.INVALID_ARG, f"{name} is {array.dtype}; it must be {np.dtype(dtype)}")
    if array.ndim != 2 or array.shape[0] != 1:
        raise RequestError(Code.INVALID_ARG, f"{name} has shape {list(array.shape)}; it must be [1, n]")
    row: npt.NDArray[Any] = array[0]
    return row


def _user(request: Any) -> User:
    """The correlation ID. 0 and "" are what a server's own warm-up carries: nobody, and nothing is kept."""
    try:
        user: User = request.correlation_id()
    except UnicodeDecodeError as error:
        raise RequestError(Code.INVALID_ARG, "the user's ID is not UTF-8") from error
    return user or None


def _parameters(request: Any) -> dict[str, Any]:
    try:
        parameters = json.loads(request.parameters() or "{}")
    except ValueError as error:
        raise RequestError(Code.INVALID_ARG, "the request's parameters are not readable") from error
    if not isinstance(parameters, dict):
        raise RequestError(Code.INVALID_ARG, "the request's parameters are no names with values")
    return parameters


def _forget(parameters: dict[str, Any]) -> bool:
    forget = parameters.get("forget", False)
    if not isinstance(forget, bool):
        raise RequestError(Code.INVALID_ARG, f"forget is {forget!r}; it must be true or false")
    return forget


def _prefix_digest(parameters: dict[str, Any]) -> int | None:
    stated = parameters.get("prefix_digest")
    if stated is None:
        return None
    if not isinstance(stated, str) or not _DIGEST.fullmatch(stated):
        raise RequestError(
            Code.INVALID_ARG, f"prefix_digest must be a string of {HEX_DIGITS} hexadecimal digits (docs/protocol.md)"
        )
    return int(stated, 16)


def _top_k(parameters: dict[str, Any]) -> int | None:
    if "top_k" not in parameters:
        return None
    top_k = parameters["top_k"]
    if isinstance(top_k, str) and _WHOLE_NUMBER.fullmatch(top_k):
        top_k = int(top_k)
    if not isinstance(top_k, int) or isinstance(top_k, bool):
        raise RequestError(Code.INVALID_ARG, f"top_k is {top_k!r}; it must be a whole number")
    return top_k
