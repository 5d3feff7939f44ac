"""Everything a call can fail with, and how a server's status becomes one of them."""

from __future__ import annotations

import re


class MtserveError(Exception):
    """Anything that `mtserve_client` raises on purpose."""


class InvalidRequest(MtserveError, ValueError):
    """The request is wrong, found here or by the server (INVALID_ARGUMENT): sending it again cannot help."""


class ModelNotFound(MtserveError, LookupError):
    """The server has no such model, or no such version of it."""


class HistoryNeeded(MtserveError):
    """Events are needed that this client does not have: call again with `history=` the user's whole history.

    Attributes:
        position: the first position, in the user's whole history, from which events are needed.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class ServerUnavailable(MtserveError, ConnectionError):
    """The server cannot be reached, is shutting down, or missed its own deadline. Safe to send again."""


class DeadlineExceeded(MtserveError, TimeoutError):
    """No answer within `timeout_s`. Safe to send again."""


class ServerFault(MtserveError):
    """The server failed (INTERNAL), or answered something that is not the protocol. Safe to send again."""


class ClientClosed(MtserveError):
    """The client was used after `close()`."""


def is_final(error: MtserveError) -> bool:
    """Whether the server has decided, and the request is over. Otherwise it may yet be carried out."""
    return isinstance(error, (InvalidRequest, ModelNotFound, HistoryNeeded))


_NEEDED_FROM = re.compile(r"tokens are needed from position (\d+)")
_UNKNOWN_MODEL = "unknown model"
# A server that stops unloads its models before it closes its ports; and so does one that loads a model again.
_UNLOADED = "has no available versions"


def _not_found(message: str) -> MtserveError:
    position = _NEEDED_FROM.search(message)
    if position is None:
        return ServerUnavailable(message) if _UNLOADED in message else ModelNotFound(message)
    return HistoryNeeded(message, int(position.group(1)))


def from_grpc(status: str | None, message: str) -> MtserveError:
    """The error for a gRPC status, such as "StatusCode.NOT_FOUND", and its message."""
    code = (status or "").rpartition(".")[2]
    if code == "NOT_FOUND":
        return _not_found(message)
    if code == "DEADLINE_EXCEEDED":
        return DeadlineExceeded(message)
    # CANCELLED by the server: Triton ends a user's queued requests together when one of them is cancelled.
    if code in ("UNAVAILABLE", "CANCELLED"):
        return ServerUnavailable(message)
    # UNIMPLEMENTED is Triton's UNSUPPORTED; RESOURCE_EXHAUSTED a message over somebody's size limit.
    if code in (
        "INVALID_ARGUMENT",
        "UNIMPLEMENTED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
    ):
        return InvalidRequest(message)
    return ServerFault(f"{code or 'no status'}: {message}")


def from_http(status: int, message: str) -> MtserveError:
    """The error for an HTTP status other than 200 and the message in its body.

    Triton 24.10 answers 400 (INVALID_ARG, UNKNOWN, ALREADY_EXISTS, CANCELLED), 404, 500, 501 and 503; older
    servers answer 400 to nearly everything, so a 400 is read by its message.
    """
    if status == 404 or (status == 400 and (_NEEDED_FROM.search(message) or _UNKNOWN_MODEL in message)):
        return _not_found(message)
    if status in (408, 429, 499, 502, 503, 504):
        return ServerUnavailable(message)
    if 400 <= status < 500 or status == 501:
        return InvalidRequest(message)
    return ServerFault(f"HTTP {status}: {message}")
