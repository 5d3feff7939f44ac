"""Random traffic for a while, and for long: `make test-soak`, 20 minutes, or MTSERVE_SOAK_SECONDS."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.engine import worlds
from tests.server.lively import serving
from tests.server.soak import Soak
from tests.server.test_embedded import children, regions


def soak(tmp_path: Path, host_memory: str, seconds: float) -> Soak:
    weights = tmp_path / "weights"
    weights.mkdir()
    model = worlds.lively_model(weights)
    log = tmp_path / "server.log"
    knobs = {"host_memory": host_memory, "zero_on_free": "true" if host_memory == "pageable" else "false"}
    with serving(tmp_path / "repository", weights, knobs, log_file=log) as server:
        (stub,) = children(server.pid)
        run = Soak(server, model)
        run.run(stub, seconds)
        assert not run.failures, run.failures
        assert children(server.pid) == [stub], "it is the same stub as before"
        assert server.errors() == []
        assert server.stop() == 0
        assert regions(server.shm_prefix) == []
    text = log.read_text()
    assert "finalized" in text
    for trouble in ("Traceback", "failed", "broken", "left behind"):
        assert trouble not in text, f"'{trouble}' in the log"
    assert all(run.counts.values()), run.counts
    assert (run.found > 0).all(), f"device, host, recomputed, new: {run.found}"
    return run


@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_a_short_soak(tmp_path: Path, host_memory: str) -> None:
    soak(tmp_path, host_memory, 10)


@pytest.mark.soak
@pytest.mark.timeout(3 * 60 * 60)
@pytest.mark.parametrize("host_memory", ["pinned", "pageable"])
def test_a_long_soak(tmp_path: Path, host_memory: str) -> None:
    run = soak(tmp_path, host_memory, float(os.environ.get("MTSERVE_SOAK_SECONDS", "1200")) / 2)
    tokens = f"tokens found on device, host, recomputed, new {run.found.tolist()}"
    sys.stdout.write(f"\n{run.counts}; {tokens}; memory {run.growth():.4f} times\n")
    assert run.growth() < 1.05, [size >> 20 for size in run.memory]
