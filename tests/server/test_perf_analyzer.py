"""The real perf_analyzer against the real server."""

import contextlib
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from mtserve_backend.embedded import EmbeddedServer
from perf import perf_analyzer, perf_inputs

# One short window counts as stable, whatever else this machine is doing: requests are tested here, not speed.
QUICK = ("--measurement-mode=count_windows", "--measurement-request-count=50", "--stability-percentage=1000000")


def _target(server: EmbeddedServer, inputs: Path) -> list[str]:
    return ["-m", "hstu", "-i", "grpc", "-u", server.grpc_url, f"--input-data={inputs}"]


def requests(server: EmbeddedServer) -> dict[str, int]:
    """How many the server has answered, by outcome."""
    with contextlib.closing(triton.InferenceServerClient(server.grpc_url)) as client:
        (statistics,) = client.get_inference_statistics("hstu").model_stats
    return {name: int(getattr(statistics.inference_stats, name).count) for name in ("success", "fail")}


def test_growing_histories_at_concurrency_4(server: EmbeddedServer, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    perf_inputs.write(inputs, perf_inputs.Workload(items=1683, actions=6, seed=7))
    before = requests(server)
    report = perf_analyzer.run(
        [
            *_target(server, inputs),
            "--concurrency-range=4",
            # Few IDs, so that each meets several streams, and histories that contradict what is cached.
            "--sequence-id-range=1:20",
            *QUICK,
        ],
        timeout=120,
    )
    assert report.requests > 20
    assert report.throughput > 0
    assert report.latency_us["p99"] >= report.latency_us["p50"] > 0
    counts = requests(server)
    assert counts["fail"] == before["fail"]
    assert counts["success"] - before["success"] >= report.requests


def test_a_refused_request_is_reported(server: EmbeddedServer, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    perf_inputs.write(inputs, perf_inputs.Workload(items=10**9, steps=1))  # unknown items
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match=r"this model knows items 0\.\.1682"):
        perf_analyzer.run(
            [*_target(server, inputs), *QUICK],
            timeout=120,
        )
