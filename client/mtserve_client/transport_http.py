"""HTTP. tritonclient encodes and decodes.

Its blocking HTTP client belongs to the thread that made it and knows no timeout per call, so the blocking
transport here keeps connections of the standard library instead; the asyncio one is tritonclient.http.aio.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from typing import Any
from urllib.parse import quote

import aiohttp
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from mtserve_client.errors import ClientClosed, DeadlineExceeded, ServerFault, ServerUnavailable, from_http
from mtserve_client.protocol import OUTPUTS, Call, Ranking, decode
from mtserve_client.transport import Target

# Idle connections kept for the next calls; as many more as there are calls at once are opened and closed.
_KEPT_IDLE = 32
_HEADER_LENGTH = "Inference-Header-Content-Length"


def _call_arguments(call: Call) -> dict[str, Any]:
    return {
        "inputs": call.inputs(triton.InferInput),
        "outputs": [triton.InferRequestedOutput(name) for name in OUTPUTS],
        "sequence_id": call.user,
        "sequence_start": True,
        "sequence_end": True,
        "parameters": call.parameters,
    }


def _tls(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.tls.ca_file)
    if target.tls.cert_file is not None:
        context.load_cert_chain(target.tls.cert_file, target.tls.key_file)
    return context


class HttpTransport:
    """A Transport over HTTP/1.1: a pool of connections, each used by one call at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._path = f"{target.address.path}/v2/models/{quote(target.model, safe='')}/infer"
        self._tls = _tls(target) if target.address.tls else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []  # used last at the end
        self._closed = False

    def infer(self, call: Call, timeout_s: float) -> Ranking:
        deadline = time.monotonic() + timeout_s
        body, header_length = triton.InferenceServerClient.generate_request_body(**_call_arguments(call))
        headers = {**self._target.headers.of(call.user), _HEADER_LENGTH: str(header_length)}
        while True:
            connection, fresh = self._take()
            try:
                status, length, answer = self._post(connection, body, headers, deadline)
            except TimeoutError:
                connection.close()
                raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server closes connections that were idle for long, which shows only in their next use.
                stale = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
                if isinstance(error, stale) and not fresh:
                    continue
                raise ServerUnavailable(f"{self._target.address.target}: {error or type(error).__name__}") from error
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            break
        if status != 200:
            raise from_http(status, _message(answer))
        try:
            result = triton.InferenceServerClient.parse_response_body(answer, header_length=length)
        except (ValueError, KeyError, TypeError, InferenceServerException) as error:
            raise ServerFault(f"an answer that is not Triton's: {error}") from error
        return decode(result.as_numpy, len(call.candidates))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _post(
        self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str], deadline: float
    ) -> tuple[int, int | None, bytes]:
        """Status, length of the answer's JSON part, and body. Raises TimeoutError at the deadline."""

        def until_deadline() -> None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            connection.timeout = remaining  # for connecting
            if connection.sock is not None:
                connection.sock.settimeout(remaining)

        until_deadline()
        connection.request("POST", self._path, body, headers)
        until_deadline()
        response = connection.getresponse()
        parts = []
        while True:
            part = response.read1(1 << 20)
            if not part:
                break
            parts.append(part)
            until_deadline()
        response.close()  # which frees the connection for its next request
        length = response.headers.get(_HEADER_LENGTH)
        return response.status, None if length is None else int(length), b"".join(parts)

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is a fresh one."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._idle:
                return self._idle.pop(), False
        address = self._target.address
        if self._tls is not None:
            return http.client.HTTPSConnection(address.host, address.port, context=self._tls), True
        return http.client.HTTPConnection(address.host, address.port), True

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and not self._closed and len(self._idle) < _KEPT_IDLE:
                self._idle.append(connection)
                return
        connection.close()


class AsyncHttpTransport:
    """An AsyncTransport over HTTP."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: Any = None  # made in the event loop that uses it

    async def infer(self, call: Call, timeout_s: float) -> Ranking:
        address = self._target.address
        if self._client is None:
            self._client = triton_aio.InferenceServerClient(
                address.target + address.path,
                conn_timeout=None,  # each call has its own
                ssl=address.tls,
                ssl_context=_tls(self._target) if address.tls else None,
            )
        arguments, headers = _call_arguments(call), self._target.headers.of(call.user)
        try:
            result = await asyncio.wait_for(
                self._client.infer(self._target.model, headers=headers, **arguments), timeout_s
            )
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s") from None
        except InferenceServerException as error:
            status = error.status() or ""
            raise from_http(int(status) if status.isdigit() else 0, error.message() or "no message") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnavailable(f"{address.target}: {error or type(error).__name__}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerFault(f"an answer that is not Triton's: {error}") from error
        return decode(result.as_numpy, len(call.candidates))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _message(body: bytes) -> str:
    """Triton's error message in a body, or the body where it is somebody else's (a proxy's)."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:500] or "no message"
