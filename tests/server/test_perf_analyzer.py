"""The real perf_analyzer against the real server."""

from pathlib import Path

import pytest

from mtserve_backend.embedded import EmbeddedServer
from perf import perf_analyzer, perf_inputs


def _target(server: EmbeddedServer, inputs: Path) -> list[str]:
    return ["-m", "hstu", "-i", "grpc", "-u", server.grpc_url, f"--input-data={inputs}"]


def test_growing_histories_at_concurrency_4(server: EmbeddedServer, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    perf_inputs.write(inputs, perf_inputs.Workload(items=1000, actions=4, seed=7))
    report = perf_analyzer.run(
        [
            *_target(server, inputs),
            "--concurrency-range=4",
            # Few IDs, so that each meets several streams, and histories that contradict what is cached.
            "--sequence-id-range=1:20",
            "--measurement-interval=1000",
            "--stability-percentage=80",
            "--max-trials=4",
        ],
        timeout=120,
    )
    assert report.requests > 20
    assert report.throughput > 0
    assert report.latency_us["p99"] >= report.latency_us["p50"] > 0
    assert f"Successful request count: {report.requests}" in report.text


def test_a_refused_request_is_reported(server: EmbeddedServer, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    perf_inputs.write(inputs, perf_inputs.Workload(items=10**9, steps=1))  # unknown items
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match="unknown item"):
        perf_analyzer.run(
            [*_target(server, inputs), "--measurement-interval=500", "--max-trials=2"],
            timeout=120,
        )
