"""What the blocking and the asyncio client have in common: options, checks, and the exchange for a call."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtserve_client.address import Address
from mtserve_client.errors import ClientClosed, InvalidRequest
from mtserve_client.events import Events, EventsLike
from mtserve_client.exchange import Exchange, Query, Retry, converse, erase
from mtserve_client.memory import Memory
from mtserve_client.protocol import check_candidates, check_top_k
from mtserve_client.transport import Target
from mtserve_client.users import UserId, check_user

# What `rank` takes for candidates.
CandidatesLike = Sequence[int] | NDArray[np.integer[Any]]


class BaseClient(ABC):
    """A client of one model on one server.

    Args:
        url: "host:port" or "grpc://host:port" for gRPC, "http://host:port" for HTTP; grpcs:// and https://.
        model: the model's name.
        timeout_s: how long a call may take, sending again included; each call can say otherwise.
        retry: what is sent again, and how often.
        remember_users: for how many users (those seen last) to remember what the server knows; 1 KB each.
        remember_tokens: how many events to keep in all, 12 bytes each, so as to answer a server that has
            forgotten a user by itself after `new_events=`. 0 keeps none: right for callers that always pass
            `history=`.
        ca_file: PEM file of the authorities to trust, with TLS; None: the system's.
        headers: sent with every call.
        user_header: a header in which to send the user's ID too (percent-encoded), for load balancers.

    Raises:
        InvalidRequest: a bad URL or option.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        model: str = "hstu",
        *,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
        remember_users: int = 100_000,
        remember_tokens: int = 16_000_000,
        ca_file: str | None = None,
        headers: Mapping[str, str] | None = None,
        user_header: str | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InvalidRequest(f"model is the model's name, got {model!r}")
        if remember_users < 1 or remember_tokens < 0:
            raise InvalidRequest(
                f"remember_users must be at least 1 and remember_tokens at least 0, "
                f"got {remember_users} and {remember_tokens}"
            )
        self._timeout_s = check_timeout(timeout_s)
        self._retry = retry if retry is not None else Retry()
        self._memory = Memory(remember_users, remember_tokens)
        self._target = Target(Address.parse(url), model, ca_file, dict(headers or {}), user_header)
        self._closed = False
        self._connect()

    @abstractmethod
    def _connect(self) -> None:
        """Make the transport for `self._target`."""

    def _erase(self, user_id: UserId, timeout_s: float | None) -> Exchange:
        """The checked call to forget a user, not yet begun."""
        if self._closed:
            raise ClientClosed("the client is closed")
        timeout_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        return erase(self._memory, check_user(user_id), timeout_s, self._retry)

    def _exchange(
        self,
        user_id: UserId,
        history: EventsLike | None,
        new_events: EventsLike | None,
        candidates: CandidatesLike | None,
        top_k: int | None,
        timeout_s: float | None,
    ) -> Exchange:
        """The checked call, not yet begun."""
        if self._closed:
            raise ClientClosed("the client is closed")
        if (history is None) == (new_events is None):
            raise InvalidRequest(
                "pass exactly one of history= (the whole history) and new_events= (those since the last call)"
            )
        if candidates is None:
            raise InvalidRequest("pass the candidates to score; without any, warm() prepares the user")
        query = Query(
            check_user(user_id),
            None if history is None else Events.of(history),
            None if new_events is None else Events.of(new_events),
            check_candidates(candidates),
            check_top_k(top_k),
        )
        timeout_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        return converse(self._memory, query, timeout_s, self._retry)


def check_timeout(timeout_s: float) -> float:
    """`timeout_s` as a float. Raises InvalidRequest where it is no positive, finite number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise InvalidRequest(f"timeout_s is a number of seconds, got {timeout_s!r}")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise InvalidRequest(f"timeout_s must be positive and finite, got {timeout_s}")
    return float(timeout_s)
