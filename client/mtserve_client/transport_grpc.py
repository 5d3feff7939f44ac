"""gRPC, through tritonclient.grpc and tritonclient.grpc.aio (both share one channel among all callers)."""

from __future__ import annotations

from typing import Any

import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from mtserve_client.errors import ClientClosed, MtserveError, from_grpc
from mtserve_client.protocol import OUTPUTS, Call, Ranking, decode
from mtserve_client.transport import Target

# gRPC waits up to two minutes between attempts to connect, and fails every call meanwhile; a server that
# restarts should be found as soon as it is back.
_CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


def _client_arguments(target: Target) -> dict[str, Any]:
    return {
        "url": target.address.target,
        "ssl": target.address.tls,
        "root_certificates": target.tls.ca_file,
        "private_key": target.tls.key_file,
        "certificate_chain": target.tls.cert_file,
        "channel_args": _CHANNEL,
    }


def _call_arguments(target: Target, call: Call, timeout_s: float) -> dict[str, Any]:
    user = call.user
    if isinstance(user, int) and user >= 2**63:
        user -= 2**64  # the field is an int64, and the server reads its bits as a uint64
    return {
        "model_name": target.model,
        "inputs": call.inputs(triton.InferInput),
        "outputs": [triton.InferRequestedOutput(name) for name in OUTPUTS],
        "sequence_id": user,
        "sequence_start": True,
        "sequence_end": True,
        "parameters": call.parameters,
        "headers": target.headers.of(call.user),
        "client_timeout": timeout_s,
    }


def _error(error: InferenceServerException) -> MtserveError:
    return from_grpc(error.status(), error.message() or "no message")


class GrpcTransport:
    """A Transport over gRPC."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client = triton.InferenceServerClient(**_client_arguments(target))
        self._closed = False

    def infer(self, call: Call, timeout_s: float) -> Ranking:
        arguments = _call_arguments(self._target, call, timeout_s)
        try:
            result = self._client.infer(**arguments)
        except InferenceServerException as error:
            raise _error(error) from error
        except ValueError:  # gRPC's word for a closed channel
            if self._closed:
                raise ClientClosed("the client is closed") from None
            raise
        return decode(result.as_numpy, len(call.candidates))

    def close(self) -> None:
        self._closed = True
        self._client.close()


class AsyncGrpcTransport:
    """An AsyncTransport over gRPC."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: Any = None  # made in the event loop that uses it

    async def infer(self, call: Call, timeout_s: float) -> Ranking:
        if self._client is None:
            self._client = triton_aio.InferenceServerClient(**_client_arguments(self._target))
        try:
            result = await self._client.infer(**_call_arguments(self._target, call, timeout_s))
        except InferenceServerException as error:
            raise _error(error) from error
        return decode(result.as_numpy, len(call.candidates))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
