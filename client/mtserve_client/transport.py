"""What carries calls to a server: the contract of the four transports, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from mtserve_client.address import Address
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
class Target:
    """Where calls go.

    Attributes:
        address: the server.
        model: its model.
        ca_file: PEM file of the authorities to trust, with TLS; None: the system's.
        headers: sent with every call.
        user_header: name of a header that carries the user's ID, for a load balancer to hash; None: none.
    """

    address: Address
    model: str
    ca_file: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    user_header: str | None = None

    def headers_for(self, user: UserId) -> dict[str, str]:
        """The headers of a call for `user`, names in lower case (gRPC takes no others)."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.user_header is not None:
            headers[self.user_header.lower()] = quote(str(user))
        return headers
