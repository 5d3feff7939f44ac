"""The class the Python backend drives: initialize, execute, finalize."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from mtserve_backend.config import Config, ConfigError, weights_folder
from mtserve_backend.engine import Engine
from mtserve_backend.metrics.meter import Meter
from mtserve_backend.metrics.state import Fixed
from mtserve_backend.models.config import ModelConfigError
from mtserve_backend.models.weights import WeightsError
from mtserve_backend.ranking import Code, Outcome, RankRequest, RequestError
from mtserve_backend.service import RankingService
from mtserve_backend.serving import logs, metrics, tensors
from mtserve_backend.sizes import Size
from mtserve_backend.startup import build_engine, limits
from mtserve_backend.transfer.pools import PoolError

log = logging.getLogger(__name__)

# Together below Triton's default --exit-timeout-secs of 30.
CLOSE_TIMEOUT_S = 8.0


class TritonPythonModel:
    """One instance: an engine on its own thread, fed whole batches."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Build the engine from the model's configuration. What is wrong with it is the error Triton reports."""
        logs.to_triton(args["model_name"])
        _check_round_trip()
        model_config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in model_config.get("parameters", {}).items()}
        version_folder = Path(args["model_repository"]) / args["model_version"]
        try:
            config = Config.from_parameters(parameters)
            device = torch.device("cpu")
            if args["model_instance_kind"] == "GPU":
                device = torch.device("cuda", int(args["model_instance_device_id"]))
            engine = build_engine(config, weights_folder(config, version_folder), device)
            self._limits = limits(config)
            self._meter = Meter(engine, _fixed(engine, config))
        except (ConfigError, ModelConfigError, WeightsError, PoolError) as error:
            raise pb_utils.TritonModelException(f"{args['model_name']}: {error}") from error
        self._service = RankingService(engine, config.request_timeout_s, self._meter.look)
        self._meter.engine_up = lambda: self._service.ready
        self._publisher = metrics.publish(self._meter, args["model_name"], args["model_version"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response a request, in order; a bad request is answered with its own error."""
        begin = time.perf_counter()
        outcomes: list[Outcome | None] = []
        good: list[RankRequest] = []
        for request in requests:
            try:
                good.append(tensors.parse(request, self._limits))
                outcomes.append(None)
            except RequestError as refusal:
                outcomes.append(refusal)
            except Exception:
                # Raised from here it would fail every request of the batch.
                log.exception("a request could not be read")
                outcomes.append(RequestError(Code.INVALID_ARG, "the request could not be read; see docs/protocol.md"))
        answered = iter(self._service.rank(good) if good else ())
        settled = [next(answered) if outcome is None else outcome for outcome in outcomes]
        self._meter.answered(settled, time.perf_counter() - begin)
        return [tensors.respond(outcome, request) for outcome, request in zip(settled, requests, strict=True)]

    def is_ready(self) -> bool:
        """Asked by servers that know of it (not 24.10's): false sends requests elsewhere before they fail here."""
        return self._service.ready

    def finalize(self) -> None:
        """Let the engine finish, within bounds."""
        self._service.close(CLOSE_TIMEOUT_S)
        if self._publisher is not None:
            self._publisher.stop()
        log.info("finalized")


def _fixed(engine: Engine, config: Config) -> Fixed:
    token_bytes = engine.compute.model.kv_shape.values_per_token * getattr(torch, config.dtype).itemsize
    return Fixed(
        geometry=engine.manager.geometry,
        page_bytes=token_bytes * config.page_tokens,
        quota_tokens=config.offload_quota_tokens,
        log_limit_bytes=Size.parse(config.user_log).amount,
    )


def _check_round_trip() -> None:
    """With a numpy the backend was not built for, every output arrives empty, in silence. Better not to start."""
    sent = np.arange(3, dtype=np.float32)
    received = pb_utils.Tensor("CHECK", sent).as_numpy()
    if received.shape != sent.shape or not np.array_equal(received, sent):
        raise pb_utils.TritonModelException(
            f"tensors do not survive this server's Python backend with numpy {np.__version__}: "
            "servers before 24.11 need numpy below 2"
        )
