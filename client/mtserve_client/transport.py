"""What carries calls to a server: the contract of the four transports, and what they share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

from mtserve_client.address import Address
from mtserve_client.errors import InvalidRequest
from mtserve_client.placement import digest, keyed_digest
from mtserve_client.protocol import Call, Ranking
from mtserve_client.users import UserId


class Transport(Protocol):
    """Blocking; usable by several threads at once."""

    def infer(self, call: Call, timeout_s: float) -> Ranking:
        """Send one call once and return the answer. Raises only MtserveErrors, within `timeout_s`."""

    def close(self) -> None:
        """Close the connections. Calls under way may fail."""


class AsyncTransport(Protocol):
    """The same for asyncio, within one event loop."""

    async def infer(self, call: Call, timeout_s: float) -> Ranking:
        """As Transport.infer."""

    async def close(self) -> None:
        """As Transport.close."""


@dataclass(frozen=True)
class Tls:
    """PEM files for encrypted connections.

    Attributes:
        ca_file: the authorities to trust; None: the system's.
        cert_file, key_file: this client's certificate and its key, for servers that ask for one; both or none.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidRequest("cert_file and key_file go together: give both, or neither")
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and not os.access(path, os.R_OK):
                raise InvalidRequest(f"{name}: {path} cannot be read")


@dataclass(frozen=True)
class Headers:
    """What is sent with every call beside Triton's own.

    Attributes:
        fixed: the same for every call.
        route: the name of a header that carries a digest of the user's ID, for a load balancer to hash; None: none.
        route_key: with it the digest tells nobody without it who the user is; None: a plain digest.
    """

    fixed: dict[str, str] = field(default_factory=dict)
    route: str | None = None
    route_key: str | None = None

    def of(self, user: UserId) -> dict[str, str]:
        """The headers of a call for `user`, names in lower case (gRPC takes no others)."""
        headers = {name.lower(): value for name, value in self.fixed.items()}
        if self.route is not None:
            of_user = digest(user) if self.route_key is None else keyed_digest(user, self.route_key)
            headers[self.route.lower()] = of_user
        return headers


@dataclass(frozen=True)
class Target:
    """Where calls go, and how."""

    address: Address
    model: str
    tls: Tls = Tls()
    headers: Headers = Headers()
