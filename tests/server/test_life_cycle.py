"""When a server is ready, and what a full /dev/shm, too little memory and a killed stub do to it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import mtserve_backend
from mtserve_backend import repository
from mtserve_backend.commands.scrape import Scrape, scrape
from mtserve_backend.embedded import EmbeddedServer, ServerError
from tests.engine import worlds
from tests.server.lively import MODEL, serving, visit
from tests.server.raw import Raw, RawRequest, raw_request
from tests.server.soak import resident_bytes
from tests.server.test_embedded import children, within

ROOT = Path(mtserve_backend.__file__).parent.parent
GIB = 1 << 30
SMALL_SHM = "48m"


def test_ready_means_that_pools_are_touched_and_nothing_is_left_to_warm(tmp_path: Path) -> None:
    """Asked all through the load: not ready until the pools are in memory; and then the first answer is no slow one."""
    pools = {"device_cache": "512MiB", "onload_buffer": "64MiB", "host_cache": "1GiB"}
    repository.write_model(tmp_path, parameters=pools)
    pool_bytes = (512 + 64 + 1024) << 20
    seen: list[tuple[bool, int]] = []
    with (
        EmbeddedServer(tmp_path, exit_timeout=10, extra_arguments=["--model-control-mode=explicit"]) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        loading = threading.Thread(target=raw.client.load_model, args=("hstu",))
        loading.start()
        with closing(Raw("grpc", server)) as watcher:
            deadline = time.monotonic() + 60
            while not (seen and seen[-1][0]) and time.monotonic() < deadline:
                ready = watcher.client.is_model_ready("hstu")
                seen.append((ready, sum(resident_bytes(pid) for pid in children(server.pid))))
                time.sleep(0.01)
        loading.join(60)
        assert seen[-1][0], "it never became ready"
        assert seen[-1][1] >= pool_bytes, "ready, and a pool was not in memory yet"
        assert any(0 < resident < pool_bytes and not ready for ready, resident in seen), "the load was watched"
        (stub,) = children(server.pid)
        settled, times = resident_bytes(stub), []
        for user in range(1, 12):
            begin = time.perf_counter()
            raw.send("hstu", _visit(user))
            times.append(time.perf_counter() - begin)
        assert resident_bytes(stub) - settled < 256 << 20, "a first request took a pool's memory"
        # Generous for a busy machine: a first compilation, or the first touch of a pool, takes seconds.
        assert times[0] < 20 * float(np.median(times[1:])) + 0.2, times


def _visit(user: int) -> RawRequest:
    rng = np.random.default_rng(user)
    items, actions = rng.integers(1, 1600, 500), rng.integers(1, 5, 500).astype(np.int32)
    return raw_request(user, items, actions, rng.integers(1, 1600, 50))


def test_pools_that_do_not_fit_fail_the_load_with_their_sizes(tmp_path: Path) -> None:
    repository.write_model(tmp_path, parameters={"host_cache": "100TiB"})
    with (
        pytest.raises(
            ServerError, match=r"the pools do not fit into memory: host_cache 10\d,\d{3},\d{3} MiB, .*available"
        ),
        EmbeddedServer(tmp_path),
    ):
        pass


def test_a_full_shared_memory_refuses_what_is_large_and_nothing_else() -> None:
    """In a mount namespace with a /dev/shm of its own, so that no other program of this machine suffers."""
    mount = f"mount -t tmpfs -o size={SMALL_SHM} tmpfs /dev/shm"
    namespace = ["unshare", "--mount", "sh", "-c"]
    try:
        possible = subprocess.run([*namespace, mount], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("a mount namespace, which needs root and util-linux, cannot be had here")
    done = subprocess.run(
        [*namespace, f'{mount} && exec "$0" -m tests.server.full_shm', sys.executable],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "INTERNAL" in told["large request"]
    assert "shared memory" in told["large request"]
    assert told["small request, still full"] == [40, 0, 0, 0, 40]
    assert told["large request, room again"] > 100_000
    assert told["small request"] == [40, 0, 0, 0, 40]
    assert told["same stub"]
    assert told["left behind"] == []


def test_a_killed_stub_is_seen_in_tritons_metrics_and_not_in_ours(tmp_path: Path) -> None:
    """What the alert MtserveModelDead relies on: failures grow, our totals stand still, and nothing says why."""
    (tmp_path / "weights").mkdir()
    worlds.lively_model(tmp_path / "weights")
    history = worlds.random_history(np.random.default_rng(1), 20)

    def failed(samples: Scrape) -> float:
        return samples.total("nv_inference_request_failure_total", MODEL)

    with (
        serving(tmp_path / "repository", tmp_path / "weights") as server,
        closing(Raw("grpc", server)) as raw,
    ):
        raw.send(MODEL, visit(1, history))
        assert within(10, lambda: scrape(server.metrics_url).value("mtserve_batches_total", MODEL) == 1)
        (stub,) = children(server.pid)
        os.kill(stub, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(InferenceServerException):
                raw.send(MODEL, visit(1, history))
        assert within(10, lambda: failed(scrape(server.metrics_url)) >= 3)
        samples = scrape(server.metrics_url)
        assert samples.value("mtserve_batches_total", MODEL) == 1
        assert samples.value("mtserve_engine_up", MODEL) == 1


def test_sigterm_drains_within_the_exit_timeout_and_says_its_last_totals(tmp_path: Path) -> None:
    """With work in flight: every answer comes, and what was done is finalized well before the time is over."""
    (tmp_path / "weights").mkdir()
    worlds.lively_model(tmp_path / "weights")
    log = tmp_path / "log"
    history = worlds.random_history(np.random.default_rng(2), 60)
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with (
        serving(tmp_path / "repository", tmp_path / "weights", log_file=log) as server,
        closing(Raw("grpc", server)) as raw,
    ):
        for user in range(1, 40):
            request = visit(user, history)
            raw.client.async_infer(
                MODEL, raw._inputs(request.inputs), lambda result, error: answers.put(error is None),
                **raw._options(request),
            )  # fmt: skip
        assert answers.get(timeout=30)
        begin = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(30) == 0
        assert time.monotonic() - begin < 15
        outcomes = [answers.get(timeout=10) for _ in range(38)]
    assert all(outcomes)
    text = log.read_text()
    assert "finalized" in text
    assert "metrics could not be published" not in text
