"""Encrypted connections and who may make them: Triton's own gRPC flags, a secret header, and HAProxy in front."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mtserve_client import AsyncRankingClient, InvalidRequest, RankingClient, Retry, ServerUnavailable
from mtserve_client.cli import main
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer
from perf.debian import DebianError
from tests.server import haproxy
from tests.server.certificates import Authority, Certificate
from tests.server.fleet import CANDIDATES, SMALL, history

ONCE = Retry(attempts=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> tuple[Certificate, Certificate]:
    """Of the server and of a client."""
    return authority.certificate("server"), authority.certificate("client")


@pytest.fixture(scope="module")
def mutual(
    authority: Authority, certificates: tuple[Certificate, Certificate], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    """As docs/deploy.md has it: mutual TLS on the gRPC port, and operators' calls behind a secret header."""
    folder = tmp_path_factory.mktemp("repository")
    repository.write_model(folder, parameters=SMALL)
    own = certificates[0]
    flags = [
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={own.cert}",
        f"--grpc-server-key={own.key}",
        f"--grpc-root-cert={authority.cert}",
        "--grpc-restricted-protocol=shared-memory,model-repository,trace,logging:admin-key=a-secret",
        "--http-restricted-api=inference,shared-memory,model-repository,trace,logging:admin-key=a-secret",
    ]
    with EmbeddedServer(folder, exit_timeout=5, extra_arguments=flags) as server:
        yield server


def tls(authority: Authority, own: Certificate) -> dict[str, Any]:
    return {"ca_file": str(authority.cert), "cert_file": str(own.cert), "key_file": str(own.key)}


def test_mutual_tls(
    mutual: EmbeddedServer, authority: Authority, certificates: tuple[Certificate, Certificate], tmp_path: Path
) -> None:
    url, (_, own) = f"grpcs://{mutual.grpc_url}", certificates
    with RankingClient(url, **tls(authority, own)) as client:
        assert client.rank(5, history(5, 30), candidates=CANDIDATES).cache.new == 30

    async def awaited() -> int:
        async with AsyncRankingClient(url, **tls(authority, own)) as client:
            return (await client.rank(5, history(5, 30), candidates=CANDIDATES)).cache.new

    assert asyncio.run(awaited()) == 0
    words = ["warm", "--url", url, "--user", "5", "--items", "1", "--actions", "1"]
    files = ["--ca-file", str(authority.cert), "--cert-file", str(own.cert), "--key-file", str(own.key)]
    assert main([*words, *files]) == 0

    stranger = Authority(tmp_path, "stranger").certificate("client")
    for wrong in ({"ca_file": str(authority.cert)}, tls(authority, stranger), {}):
        with RankingClient(url, retry=ONCE, **wrong) as client, pytest.raises(ServerUnavailable):
            client.warm(5, history(5, 3), timeout_s=5)
    with RankingClient(mutual.grpc_url, retry=ONCE) as client, pytest.raises(ServerUnavailable):
        client.warm(5, history(5, 3), timeout_s=5)
    assert main([*words, "--timeout", "3", "--ca-file", str(authority.cert)]) == 3
    assert main([*words, "--cert-file", str(own.cert)]) == 2


def test_operators_calls_need_the_secret(
    mutual: EmbeddedServer, authority: Authority, certificates: tuple[Certificate, Certificate]
) -> None:
    own = certificates[1]
    client = InferenceServerClient(
        mutual.grpc_url,
        ssl=True,
        root_certificates=str(authority.cert),
        private_key=str(own.key),
        certificate_chain=str(own.cert),
    )
    calls = [
        client.get_model_repository_index,
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.get_log_settings,
        client.get_trace_settings,
    ]
    for call in calls:
        with pytest.raises(InferenceServerException, match="restricted"):
            call()
    with pytest.raises(InferenceServerException, match="restricted"):
        client.register_system_shared_memory("region", "/some", 64)
    assert client.get_model_repository_index(headers={"triton-grpc-protocol-admin-key": "a-secret"}).models
    client.close()
    # Over HTTP, which Triton does not encrypt, inference is restricted as well.
    with RankingClient(mutual.http_url, retry=ONCE) as over_http, pytest.raises(InvalidRequest):
        over_http.warm(5, history(5, 3))
    with RankingClient(mutual.http_url, retry=ONCE, headers={"admin-key": "a-secret"}) as over_http:
        over_http.warm(5, history(5, 3))


def test_haproxy_ends_tls(
    authority: Authority, certificates: tuple[Certificate, Certificate], server: EmbeddedServer, tmp_path: Path
) -> None:
    own, clients = certificates
    try:
        haproxy.find()
    except DebianError as error:
        pytest.skip(f"no haproxy here, and it cannot be fetched: {error}")
    ports = {"triton-1": (int(server.grpc_url.rpartition(":")[2]), int(server.http_url.rpartition(":")[2]))}
    variables = {"MTSERVE_TLS_CERT": str(own.both), "MTSERVE_TLS_CLIENTS": str(authority.cert)}
    with haproxy.Balancer(tmp_path, ports, variables) as balancer:
        for url in (f"grpcs://{balancer.grpc_url}", balancer.http_url.replace("http:", "https:")):
            with RankingClient(url, **tls(authority, clients)) as client:
                client.rank("tls", history(5, 30), candidates=CANDIDATES)
            with (
                RankingClient(url, retry=ONCE, ca_file=str(authority.cert)) as client,
                pytest.raises(ServerUnavailable),
            ):
                client.warm("tls", history(5, 3), timeout_s=5)
