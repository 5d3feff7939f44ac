"""Users' IDs and a real server's log: what it writes of right, wrong and strange requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer
from tests.server.fleet import SMALL
from tests.server.raw import Raw, RawRequest, raw_request

ITEMS, CANDIDATES = np.arange(1, 31), np.array([50, 100])


@pytest.fixture(scope="module", params=["with warnings", "without warnings"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Triton itself warns, with the ID, of a sequence that is left open and started again."""
    folder = tmp_path_factory.mktemp("repository")
    for model in ("hstu", "hstu_0", "hstu_1"):
        repository.write_model(folder, model, parameters=SMALL | {"max_events": "100", "max_user_id_bytes": "64"})
    repository.write_router(folder, ["hstu_0", "hstu_1"])
    flags = ["--log-warning=false"] if request.param == "without warnings" else []
    with EmbeddedServer(folder, exit_timeout=5, extra_arguments=flags) as server:
        yield server


def strange(user: int | str, left_open: bool) -> list[RawRequest]:
    """Right; unknown item; a gap; too many events; a bad parameter; without START; left open, then started again."""
    ones = np.ones(len(ITEMS))
    requests = [
        raw_request(user, ITEMS, ones, CANDIDATES),
        raw_request(user, ITEMS + 10**6, ones, CANDIDATES),
        raw_request(user, ITEMS, ones, CANDIDATES, 77),
        raw_request(user, np.tile(ITEMS, 9), np.ones(270), CANDIDATES),
        raw_request(user, ITEMS, ones, CANDIDATES, parameters={"top_k": 0}),
        raw_request(user, ITEMS, ones, CANDIDATES, start=False),
    ]
    if left_open:
        requests += [raw_request(user, ITEMS, ones, CANDIDATES, end=False), raw_request(user, ITEMS, ones, CANDIDATES)]
    return requests


@pytest.mark.parametrize("kind", ["grpc", "http"])
@pytest.mark.parametrize("model", ["hstu", "hstu_router"])
def test_no_users_id_is_in_the_servers_log(running: EmbeddedServer, kind: str, model: str) -> None:
    raw = Raw(kind, running)
    quiet = "--log-warning=false" in running._extra_arguments
    refused = 0
    for user in (987_654_321_001, "someone@example.org", "x" * 65 + "someone@example.org"):
        for request in strange(user, left_open=quiet):
            try:
                raw.send(model, request)
            except InferenceServerException:
                refused += 1
    if kind == "grpc":
        burst = [strange(987_654_321_001, left_open=False)[0]] * 20
        assert all(isinstance(answer, dict) for answer in raw.send_many(model, burst))
    raw.close()
    assert refused >= 15
    log = Path(str(running.log_path)).read_text()
    assert "successfully loaded" in log
    assert [line for line in log.splitlines() if "987654321001" in line or "someone@" in line] == []
