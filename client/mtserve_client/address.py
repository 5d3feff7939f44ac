"""URLs: which transport, which host and port, with or without TLS."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mtserve_client.errors import InvalidRequest

_SCHEMES = {"grpc": (False, False), "grpcs": (False, True), "http": (True, False), "https": (True, True)}


@dataclass(frozen=True)
class Address:
    """A parsed server URL.

    Attributes:
        http: HTTP, otherwise gRPC.
        tls: encrypted.
        host, port: where the server listens.
        path: the base path before /v2, without a slash at its end; HTTP only.
    """

    http: bool
    tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address of "host:port", "grpc://host:port", "grpcs://...", "http://host:port/path" or
        "https://...".

        Without a port: 8001 (gRPC) and 8000 (HTTP), Triton's own, and 443 with TLS.

        Raises:
            InvalidRequest: not such a URL.
        """
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        if parts.scheme not in _SCHEMES:
            raise InvalidRequest(f"URL {url!r}: the scheme is one of grpc, grpcs, http, https")
        http, tls = _SCHEMES[parts.scheme]
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"URL {url!r}: {error}") from None
        path = parts.path.rstrip("/")
        if not parts.hostname or parts.query or parts.fragment or parts.username or (path and not http):
            raise InvalidRequest(f"URL {url!r}: expected host:port, grpc://host:port or http://host:port")
        return cls(http, tls, parts.hostname, port or (443 if tls else 8000 if http else 8001), path)

    @property
    def target(self) -> str:
        """host:port, as gRPC and tritonclient take it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
