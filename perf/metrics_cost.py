"""What publishing metrics costs a request: the same server with and without, in turns.

    python -m perf.metrics_cost --requests 6000

Both are packaged as `mtserve package` does it; in one copy the publishing thread is told to wait for ever.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from mtserve_client import Events, RankingClient

from mtserve_backend import repository
from mtserve_backend.commands.package import PackageOptions, package
from mtserve_backend.embedded import EmbeddedServer

EVERY = "PUBLISH_EVERY_S = 0.5"
NEVER = "PUBLISH_EVERY_S = 1e6"
USERS = 50
KNOBS = {"device_cache": "64MiB", "onload_buffer": "16MiB", "host_cache": "128MiB", "threads": "1"}


def repository_of(folder: Path, publishing: bool) -> Path:
    weights = repository.shipped() / repository.MODEL / "1" / "weights"
    (model,) = package(PackageOptions(weights, folder, settings=KNOBS))
    if not publishing:
        publisher = model / "1" / "mtserve_backend" / "metrics" / "publisher.py"
        text = publisher.read_text(encoding="utf-8")
        if EVERY not in text:
            raise RuntimeError(f"{publisher} does not say {EVERY}: this measurement is out of date")
        publisher.write_text(text.replace(EVERY, NEVER), encoding="utf-8")
    return folder


def visits(client: RankingClient, count: int, rng: np.random.Generator) -> list[float]:
    """Milliseconds of each of `count` returning visits, one after the other."""
    times = []
    for _ in range(count):
        user = 1 + int(rng.integers(USERS))
        history = Events(items=rng.integers(1, 1600, 40).tolist(), actions=rng.integers(1, 5, 40).tolist())
        candidates = rng.integers(1, 1600, 50).tolist()
        begin = time.perf_counter()
        client.rank(user, history, candidates=candidates)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perf.metrics_cost",
        description="Latency of lone requests with metrics published and without, in turns on one machine.",
        epilog="example: python -m perf.metrics_cost --requests 6000 --rounds 20",
    )
    parser.add_argument("--requests", type=int, default=6000, metavar="N", help="of each kind (default: 6000)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="turns (default: 20)")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"published": [], "not published": []}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        clients = {}
        for name in times:
            folder = repository_of(Path(scratch) / name.replace(" ", "-"), publishing=name == "published")
            server = stack.enter_context(EmbeddedServer(folder, exit_timeout=10))
            clients[name] = stack.enter_context(RankingClient(server.grpc_url))
            visits(clients[name], 100, np.random.default_rng(0))
        for round_number in range(options.rounds):
            # Each goes first as often as the other.
            for name in list(clients)[:: 1 if round_number % 2 else -1]:
                rng = np.random.default_rng(round_number)
                times[name] += visits(clients[name], options.requests // options.rounds, rng)
    print(f"{'metrics':<14} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'mean ms':>8}")
    for name, found in times.items():
        p50, p90, p99 = np.percentile(found, (50, 90, 99))
        print(f"{name:<14} {p50:>8.3f} {p90:>8.3f} {p99:>8.3f} {np.mean(found):>8.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
