"""When a server is ready, and what a full /dev/shm and too little memory do to it. Ends: test_ends.py."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

import mtserve_backend
from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer, ServerError
from tests.server.raw import Raw, RawRequest, raw_request
from tests.server.soak import resident_bytes
from tests.server.test_embedded import children

ROOT = Path(mtserve_backend.__file__).parent.parent
GIB = 1 << 30
SMALL_SHM = "48m"


def test_ready_means_that_pools_are_in_memory(tmp_path: Path) -> None:
    """Asked all through the load: not ready until the pools are in memory; and requests take none of it later."""
    pools = {"device_cache": "256MiB", "onload_buffer": "64MiB", "host_cache": "512MiB"}
    repository.write_model(tmp_path, parameters=pools)
    pool_bytes = (256 + 64 + 512) << 20
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
                seen.append((ready, _resident_bytes_of_children(server.pid)))
                time.sleep(0.01)
        loading.join(60)
        assert seen[-1][0], "it never became ready"
        assert seen[-1][1] >= pool_bytes, "ready, and a pool was not in memory yet"
        assert any(0 < resident < pool_bytes and not ready for ready, resident in seen), "the load was watched"
        (stub,) = children(server.pid)
        settled = resident_bytes(stub)
        for user in range(1, 12):
            raw.send("hstu", _visit(user))
        assert resident_bytes(stub) - settled < 128 << 20, "a first request took a pool's memory"


def _resident_bytes_of_children(pid: int) -> int:
    """A child that ends while it is looked at has none: Triton has a short one that only reads the configuration."""
    total = 0
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError, StopIteration):
            total += resident_bytes(child)
    return total


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
