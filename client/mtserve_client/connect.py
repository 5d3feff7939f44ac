"""From a target to the transport for its scheme."""

from __future__ import annotations

from mtserve_client.transport import AsyncTransport, Target, Transport


def connect(target: Target) -> Transport:
    """The transport for the target's scheme. tritonclient's halves are imported only when they are used."""
    if target.address.http:
        from mtserve_client.transport_http import HttpTransport

        return HttpTransport(target)
    from mtserve_client.transport_grpc import GrpcTransport

    return GrpcTransport(target)


def connect_async(target: Target) -> AsyncTransport:
    """As `connect`, for asyncio."""
    if target.address.http:
        from mtserve_client.transport_http import AsyncHttpTransport

        return AsyncHttpTransport(target)
    from mtserve_client.transport_grpc import AsyncGrpcTransport

    return AsyncGrpcTransport(target)
