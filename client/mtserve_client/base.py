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
from mtserve_client.places import Places
from mtserve_client.protocol import check_candidates, check_top_k
from mtserve_client.transport import Headers, Target, Tls
from mtserve_client.users import UserId, check_user

# What `rank` takes for candidates.
CandidatesLike = Sequence[int] | NDArray[np.integer[Any]]
# The header that deploy/haproxy/ hashes.
ROUTE_HEADER = "x-mtserve-route"


class BaseClient(ABC):
    """A client of one model on one server, or of users divided among several.

    Args:
        url: "host:port" or "grpc://host:port" for gRPC, "http://host:port" for HTTP; grpcs:// and https://. Several
            divide the users among them, by the rule of docs/routing.md: a list, whose servers are known to that rule
            as "host:port"; or a dictionary from names of your own, which may stay when an address changes.
        model: the model's name. Several (a model for each GPU) divide the users of a server among them.
        timeout_s: how long a call may take, sending again included; each call can say otherwise.
        retry: what is sent again, and how often.
        remember_users: for how many users (those seen last) to remember what the server knows; 1 KB each.
        remember_tokens: how many events to keep in all, 12 bytes each, so as to answer a server that has
            forgotten a user by itself after `new_events=`. 0 keeps none: right for callers that always pass
            `history=`.
        ca_file: PEM file of the authorities to trust, with TLS; None: the system's.
        cert_file, key_file: PEM files of this client's certificate and key, for servers that ask for one.
        headers: sent with every call.
        route_header: a header that carries a digest of the user's ID, for a load balancer in front of the servers to
            hash; None: not sent.
        route_key: a secret for that digest, so that nobody who reads it can find the user by trying IDs. All clients of
            one load balancer need the same.

    Raises:
        InvalidRequest: a bad URL or option.
    """

    def __init__(
        self,
        url: str | Sequence[str] | Mapping[str, str] = "localhost:8001",
        model: str | Sequence[str] = "hstu",
        *,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
        remember_users: int = 100_000,
        remember_tokens: int = 16_000_000,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        headers: Mapping[str, str] | None = None,
        route_header: str | None = ROUTE_HEADER,
        route_key: str | None = None,
    ) -> None:
        servers, models = _servers(url), _models(model)
        if remember_users < 1 or remember_tokens < 0:
            raise InvalidRequest(
                f"remember_users must be at least 1 and remember_tokens at least 0, "
                f"got {remember_users} and {remember_tokens}"
            )
        self._timeout_s = check_timeout(timeout_s)
        self._retry = retry if retry is not None else Retry()
        self._memory = Memory(remember_users, remember_tokens)
        self._places = Places(tuple(servers), models)
        tls, sent = Tls(ca_file, cert_file, key_file), Headers(dict(headers or {}), route_header, route_key)
        self._targets = [Target(address, name, tls, sent) for address in servers.values() for name in models]
        self._closed = False
        self._connect()

    @abstractmethod
    def _connect(self) -> None:
        """Make the transports for `self._targets`: place i is target i."""

    def _erase(self, user_id: UserId, timeout_s: float | None) -> Exchange:
        """The checked call to forget a user, not yet begun."""
        if self._closed:
            raise ClientClosed("the client is closed")
        timeout_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        return erase(self._memory, self._places, check_user(user_id), timeout_s, self._retry)

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
        return converse(self._memory, self._places, query, timeout_s, self._retry)


def _servers(url: str | Sequence[str] | Mapping[str, str]) -> dict[str, Address]:
    """Addresses by the name that is hashed."""
    if isinstance(url, Mapping):
        servers = {name: Address.parse(address) for name, address in url.items()}
        if not all(isinstance(name, str) and name for name in servers):
            raise InvalidRequest("a server's name is a string that is not empty")
    else:
        addresses = [Address.parse(address) for address in ([url] if isinstance(url, str) else url)]
        servers = {address.target: address for address in addresses}
        if len(servers) < len(addresses):
            raise InvalidRequest(f"a server is given twice: {', '.join(sorted(a.target for a in addresses))}")
    if not servers:
        raise InvalidRequest("url names no server; it is one URL, or several")
    return servers


def _models(model: str | Sequence[str]) -> tuple[str, ...]:
    names = (model,) if isinstance(model, str) else tuple(model)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidRequest(f"model is the model's name, or several, got {model!r}")
    if len(set(names)) < len(names):
        raise InvalidRequest(f"a model is given twice: {', '.join(names)}")
    return names


def check_timeout(timeout_s: float) -> float:
    """`timeout_s` as a float. Raises InvalidRequest where it is no positive, finite number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise InvalidRequest(f"timeout_s is a number of seconds, got {timeout_s!r}")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise InvalidRequest(f"timeout_s must be positive and finite, got {timeout_s}")
    return float(timeout_s)
