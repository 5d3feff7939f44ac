"""Requests by plain tritonclient, over gRPC or HTTP: what any client in any language could send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

OUTPUTS = ("SCORES", "RANKING", "CACHE_INFO")


@dataclass
class RawRequest:
    """Arrays as they go on the wire; a test may spoil any of them."""

    user: int | str
    inputs: dict[str, npt.NDArray[Any]]
    start: bool = True
    end: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)


def raw_request(
    user: int | str,
    items: npt.NDArray[np.int64],
    actions: npt.NDArray[np.int32],
    candidates: npt.NDArray[np.int64],
    start_position: int = 0,
    **options: Any,
) -> RawRequest:
    return RawRequest(
        user,
        {
            "HISTORY_ITEMS": items[np.newaxis].astype(np.int64),
            "HISTORY_ACTIONS": actions[np.newaxis].astype(np.int32),
            "HISTORY_START": np.array([[start_position]], dtype=np.int64),
            "CANDIDATES": candidates[np.newaxis].astype(np.int64),
        },
        **options,
    )


class Raw:
    """One connection. `send` answers with arrays by output name, or raises InferenceServerException."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind = kind
        self._library = grpcclient if kind == "grpc" else httpclient
        url = server.grpc_url if kind == "grpc" else server.http_url.removeprefix("http://")
        self.client = self._library.InferenceServerClient(url)

    def close(self) -> None:
        self.client.close()

    def send(self, model: str, request: RawRequest) -> dict[str, npt.NDArray[Any]]:
        result = self.client.infer(model, self._inputs(request.inputs), **self._options(request))
        return {name: result.as_numpy(name) for name in OUTPUTS}

    def send_many(self, model: str, requests: list[RawRequest]) -> list[dict[str, npt.NDArray[Any]] | str]:
        """All in flight at once (gRPC only); an error is its text."""
        import queue

        answers: list[Any] = [None] * len(requests)
        done: queue.SimpleQueue[int] = queue.SimpleQueue()

        def taken(index: int) -> Any:
            def call(result: Any, error: InferenceServerException | None) -> None:
                answers[index] = str(error) if error else {name: result.as_numpy(name) for name in OUTPUTS}
                done.put(index)

            return call

        for index, request in enumerate(requests):
            self.client.async_infer(model, self._inputs(request.inputs), taken(index), **self._options(request))
        for _ in requests:
            done.get(timeout=60)
        return answers

    def _inputs(self, arrays: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        inputs = []
        for name, array in arrays.items():
            tensor = self._library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        return inputs

    @staticmethod
    def _options(request: RawRequest) -> dict[str, Any]:
        return {
            "sequence_id": request.user,
            "sequence_start": request.start,
            "sequence_end": request.end,
            "parameters": request.parameters or None,
        }
