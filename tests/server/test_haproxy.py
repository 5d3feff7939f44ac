"""deploy/haproxy with the real HAProxy and three real servers: each user has one, whichever of them come and go."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mtserve_client import RankingClient, Retry
from mtserve_client.placement import digest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from mtserve_backend import probe
from perf.debian import DebianError
from tests.server import haproxy
from tests.server.fleet import CANDIDATES, Load, Member, fleet, history
from tests.server.haproxy import Balancer
from tests.server.processes import stub

DIGESTS = [digest(user) for user in range(1, 401)]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    try:
        haproxy.find()
    except DebianError as error:
        pytest.skip(f"no haproxy here, and it cannot be fetched: {error}")
    with fleet(tmp_path_factory.mktemp("repository"), 3) as started:
        yield started


def ports(members: list[Member]) -> dict[str, tuple[int, int]]:
    return {
        f"triton-{number}": (
            int(member.server.grpc_url.rpartition(":")[2]),
            int(member.server.http_url.rpartition(":")[2]),
        )
        for number, member in enumerate(members, 1)
    }


def test_three_servers_one_killed_under_load_and_one_added(members: list[Member], tmp_path: Path) -> None:
    users = list(range(777_000_001, 777_000_025))
    servers = ports(members)
    two = dict(list(servers.items())[:2])
    with Balancer(tmp_path, two) as balancer, RankingClient(balancer.grpc_url, retry=Retry(attempts=20)) as client:
        before = {d: balancer.server_of(d) for d in DIGESTS}
        assert before == {d: balancer.server_of(d) for d in DIGESTS}, "each user has a server"
        assert all(abs(count / len(DIGESTS) - 1 / 2) < 0.1 for count in Counter(before.values()).values())

        balancer.servers = servers  # one is added
        balancer.start()
        after = {d: balancer.server_of(d) for d in DIGESTS}
        moved = [d for d in DIGESTS if before[d] != after[d]]
        assert {after[d] for d in moved} == {"triton-3"}, "nobody moves but to the new one"
        assert abs(len(moved) / len(DIGESTS) - 1 / 3) < 0.1

        with Load(client, users) as load:
            load.wait_for(10 * len(users))
            calm = len(load.latencies)
            members[0].kill()
            load.wait_for(10 * len(users))
            balancer.wait_until(lambda up: up == {"triton-2", "triton-3"})
            without = {d: balancer.server_of(d) for d in DIGESTS}
            load.wait_for(5 * len(users))
            members[0].start_again()
            balancer.wait_until(lambda up: up == set(servers))
            load.wait_for(5 * len(users))
        assert load.wrong == [], "nothing is lost but time"
        assert max(load.latencies[calm:]) < 20
        assert {d for d in DIGESTS if without[d] != after[d]} == {d for d in DIGESTS if after[d] == "triton-1"}
        assert after == {d: balancer.server_of(d) for d in DIGESTS}, "users go back to where they were"

        for user in users:  # over HTTP a user is where it is over gRPC
            whole = history(user, load.lengths[user])
            client.rank(user, whole, candidates=CANDIDATES)
            with RankingClient(balancer.http_url) as over_http:
                assert over_http.rank(user, whole, candidates=CANDIDATES).cache.new == 0
            own = members[int(balancer.server_of(digest(user))[-1]) - 1]
            with RankingClient(own.server.grpc_url) as direct:
                assert direct.warm(user, whole).new == 0
        log = balancer.log
        assert " grpc_servers/triton-3 " in log
        assert "777000" not in log, "no user's ID"
        assert balancer.stop() == 0


def test_what_is_not_inference_is_refused(members: list[Member], tmp_path: Path) -> None:
    with Balancer(tmp_path, ports(members)) as balancer:
        client = InferenceServerClient(balancer.grpc_url)
        assert client.is_server_ready(headers={})
        assert client.is_model_ready("hstu")
        for refused in (client.get_model_repository_index, client.get_system_shared_memory_status):
            with pytest.raises(InferenceServerException, match="403"):
                refused()
        with pytest.raises(InferenceServerException, match="403"):
            client.unload_model("hstu")
        client.close()
        for path, status in (
            ("/v2/repository/index", 403),
            ("/v2/models/hstu/infer", 400),  # without the header
            ("/v2/systemsharedmemory/status", 403),
            ("/v2/logging", 403),
            ("/v2/../v2/repository/index", 403),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(balancer.http_url + path, data=b"{}"), timeout=10)
            assert caught.value.code == status, path
        with urllib.request.urlopen(f"{balancer.http_url}/v2/health/ready", timeout=10) as answer:
            assert answer.status == 200


def test_a_server_whose_models_process_died_gets_no_users(members: list[Member], tmp_path: Path) -> None:
    """Triton's own health says that all is well with it; the probe, as HAProxy's check, does not."""
    with Balancer(tmp_path, ports(members)) as balancer:
        os.kill(stub(members[2].server, "hstu"), signal.SIGKILL)
        balancer.wait_until(lambda up: up == {"triton-1", "triton-2"})
        with urllib.request.urlopen(f"{members[2].server.http_url}/v2/health/ready", timeout=10) as answer:
            assert answer.status == 200
        assert [probe.main([member.server.http_url, "hstu"]) for member in members] == [0, 0, 1]
        assert probe.main([members[0].server.http_url, "no_such_model"]) == 1
        assert probe.main([]) == 2
        began = time.monotonic()
        with RankingClient(balancer.grpc_url) as client:
            for user in range(6001, 6010):
                client.rank(user, history(user, 10), candidates=CANDIDATES)
        assert time.monotonic() - began < 30
