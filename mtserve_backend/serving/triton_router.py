"""The class behind `hstu_router`: each request goes, as it is, to the model that keeps its user; so does its answer.

Nothing is decided here but the place. No request is sent to another model when its own fails: a delta is right only
for the model that holds what came before it, so the error goes back, and the client (which knows more) sends again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb_utils

from mtserve_backend.config import ConfigError
from mtserve_backend.routing.config import RouterConfig
from mtserve_backend.routing.placement import digest, preference
from mtserve_backend.serving import errors, logs

log = logging.getLogger(__name__)

INPUTS = ("HISTORY_ITEMS", "HISTORY_ACTIONS", "HISTORY_START", "CANDIDATES")
OUTPUTS = ("SCORES", "RANKING", "CACHE_INFO")
# Below Triton's default --exit-timeout-secs of 30.
CLOSE_TIMEOUT_S = 20.0


@dataclass
class _Line:
    """The calls to one model: threads of its own, so that a slow model holds up nobody else's users."""

    model: str
    pool: ThreadPoolExecutor
    waiting: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, limit: int) -> bool:
        with self.lock:
            if self.waiting >= limit:
                return False
            self.waiting += 1
            return True

    def leave(self) -> None:
        with self.lock:
            self.waiting -= 1


class TritonPythonModel:
    """One instance: hands requests out and returns at once; answers are sent by the threads that wait for them."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the names of the models. They may be loaded later than this one: nothing is asked of them yet."""
        logs.to_triton(args["model_name"])
        model_config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in model_config.get("parameters", {}).items()}
        try:
            self._config = RouterConfig.from_parameters(parameters)
            self._config.check_not_among(args["model_name"])
        except ConfigError as error:
            raise pb_utils.TritonModelException(f"{args['model_name']}: {error}") from error
        self._lines = [
            _Line(name, ThreadPoolExecutor(self._config.calls_per_model, thread_name_prefix=f"router-{name}"))
            for name in self._config.names
        ]
        log.info("users are divided among %s", ", ".join(self._config.names))

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand out the requests. Each is answered through its response sender, whenever its model has answered."""
        for request in requests:
            arrived = time.monotonic()
            sender = request.get_response_sender()
            try:
                line = self._line(request)
                if not line.enter(self._config.max_waiting):
                    _send(sender, _unavailable(f"{self._config.max_waiting} requests wait for {line.model} already"))
                    continue
                line.pool.submit(self._pass, line, request, sender, arrived)
            except Exception:
                # Raised from here it would fail every request of the batch.
                log.exception("a request could not be handed out")
                _send(sender, errors.response("INVALID_ARG", "the request could not be read; see docs/protocol.md"))

    def finalize(self) -> None:
        """Let the calls under way end: each model answers within its own deadline."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while any(line.waiting for line in self._lines) and time.monotonic() < deadline:
            time.sleep(0.01)
        for line in self._lines:
            line.pool.shutdown(wait=False, cancel_futures=True)
        log.info("finalized")

    def _line(self, request: Any) -> _Line:
        user = request.correlation_id()
        if len(self._lines) == 1 or not user:
            return self._lines[0]
        return self._lines[preference(self._config.names, digest(user))[0]]

    @staticmethod
    def _pass(line: _Line, request: Any, sender: Any, arrived: float) -> None:
        try:
            answer = _call(line.model, request, arrived)
        except Exception as error:
            log.exception("a call to %s failed", line.model)
            answer = errors.response("INTERNAL", f"the call to {line.model} failed: {error}; send the request again")
        finally:
            line.leave()
        _send(sender, answer)


def _call(model: str, request: Any, arrived: float) -> Any:
    """The model's answer, or its error with its code."""
    if request.is_cancelled():
        return errors.response("CANCELLED", "the request was cancelled before it was handed to a model")
    timeout_us = request.timeout()
    if timeout_us:
        timeout_us -= int((time.monotonic() - arrived) * 1e6)
        if timeout_us <= 0:
            return _unavailable(f"the request's timeout was over before {model} could take it")
    answer = pb_utils.InferenceRequest(
        model_name=model,
        request_id=request.request_id(),
        correlation_id=request.correlation_id(),
        flags=request.flags(),
        timeout=timeout_us,
        parameters=json.loads(request.parameters() or "{}") | {errors.CODE_PARAMETER: True},
        requested_output_names=list(OUTPUTS),
        inputs=[pb_utils.get_input_tensor_by_name(request, name) for name in INPUTS],
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
    ).exec()
    if answer.has_error():
        return errors.response(*errors.read(answer.error().message()))
    return pb_utils.InferenceResponse(output_tensors=answer.output_tensors())


def _send(sender: Any, answer: Any) -> None:
    sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _unavailable(why: str) -> Any:
    return errors.response("UNAVAILABLE", f"{why}; it is safe to send the request again")
