"""The demo against a real server, in small; and what happens to it on Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mtserve_backend.repository import shipped
from perf import demo, demo_parts, demo_text, fetch, movielens
from perf.demo_parts import Measured, MovieLensPart, PaperPart
from perf.lab.presets import PARADIGMS
from perf.movielens import MovieLens
from perf.plot import LINES
from perf.summary import disagreements, summarize

pytestmark = pytest.mark.server
WEIGHTS = shipped() / "hstu" / "1" / "weights"


@pytest.fixture(scope="module")
def ml_100k() -> MovieLens:
    return movielens.load(fetch.ml_100k())


def test_real_users_get_the_same_ranking_in_every_mode(ml_100k: MovieLens) -> None:
    measured = Measured()
    part = MovieLensPart(ml_100k, WEIGHTS, users=12, device_share=0.3)
    part.run(measured.movielens)
    found = summarize(measured.movielens)
    assert list(found) == list(PARADIGMS)
    assert disagreements(found) == []
    assert found["recompute"].quality.users == 12
    assert found["recompute"].total_hit_ratio == 0
    assert 0 < found["device"].device_hit_ratio <= found["hierarchical"].total_hit_ratio
    text, problems = demo_text.movielens_text(ml_100k, WEIGHTS, measured.movielens)
    assert problems == []
    assert "are equal in the three modes" in text
    assert "lately rated" in text


def test_long_histories_come_back_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's second part as it is, but for a model that is small enough for a test."""
    small = replace(demo_parts.CONFIG, layers=1, heads=1, head_dim=16, hidden=16, items=500)
    monkeypatch.setattr("perf.paper_model.CONFIG", small)
    monkeypatch.setattr(demo_parts, "CONFIG", small)
    measured = Measured()
    PaperPart(seed=3, users=3, history=600, visits=9, lengths=(300, 600, 900)).run(measured)
    for records in (measured.paper, measured.sweep):
        assert disagreements(summarize(records)) == []
    found = summarize(measured.paper)
    assert found["hierarchical"].total_hit_ratio > found["device"].total_hit_ratio + 0.2
    lines = {(record.mode, record.found) for record in measured.sweep}
    assert lines == set(LINES), "every line of the plot is drawn"


def test_a_data_set_that_the_weights_do_not_know_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,4.0,1\n")
    assert demo.main(["--from", str(tmp_path)]) == 1
    assert "has 1 items and the weights" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_server_and_prints_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    report = tmp_path / "demo.json"
    command = [sys.executable, "-m", "perf.demo", "--json", str(report), "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for_requests(process)
        process.send_signal(number)
        said, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == demo.INTERRUPTED, said
    assert "interrupted: the server is stopped" in said
    assert "recompute" in said
    figures = json.loads(report.read_text())
    assert figures["interrupted"]
    assert figures["movielens"]["recompute"]["requests"] > 0
    assert {"machine", "versions", "commit"} <= figures["environment"].keys()


def _wait_for_requests(process: subprocess.Popen[str]) -> None:
    """Until the progress bar has moved: it says 1% of its 14,814 requests."""
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    seen = ""
    while " 1%" not in seen:
        letter = process.stderr.read(1)
        assert letter, f"the demo ended with {process.wait()}: {seen}"
        assert time.monotonic() < deadline, seen
        seen = (seen + letter)[-2000:]
