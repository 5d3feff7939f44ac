"""The command line: what it writes, prints and returns, and that a Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perf.traces import cli, make
from perf.traces.kuairand import OFFICIAL_HEADER
from perf.traces.reader import Trace

RATINGS = "userId,movieId,rating,timestamp\n7,100,4.0,30\n7,9,0.5,10\n8,9,5.0,95\n7,20,3.5,91\n7,9,bad,92\n"
LOG = f"{OFFICIAL_HEADER}\n" + "".join(
    f"{user},5,20220408,0,{1_649_376_000_000 + 1000 * second},1,0,0,0,0,0,1,1,1,0,0,0,0,1\n"
    for user, second in ((1, 0), (2, 3), (1, 59), (1, 60))
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log_standard_4_08_to_4_21_1k.csv"
    path.write_text(LOG)
    return path


@pytest.mark.parametrize(("kind", "published"), [("kuairand-1k", "1,181,699"), ("mt", "1,972,438")])
def test_generate_prints_its_statistics_beside_the_published_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, published: str
) -> None:
    out, report = tmp_path / "a.trace", tmp_path / "a.json"
    options = ["--scale", "0.01", "--seed", "3", "--candidates", "2", "--items", "500", "--json", str(report)]
    assert cli.main(["generate", kind, "--out", str(out), *options]) == 0
    printed = capsys.readouterr().out
    assert published in printed
    assert "difference" in printed
    found = json.loads(report.read_text())
    with Trace(out) as trace:
        assert trace.check().requests == found["statistics"]["requests"]
        assert trace.metadata.source.seed == found["source"]["seed"] == 3
        assert trace.metadata.candidates == found["candidates"] == 2 * len(trace)
        assert trace.metadata.items == 501
    assert abs(found["difference"]["requests"]) < 0.4
    assert found["environment"]["versions"]["mtserve"]
    again = tmp_path / "b.trace"
    assert cli.main(["generate", kind, "--out", str(again), *options[:-2]]) == 0
    assert again.read_bytes() == out.read_bytes()


def test_convert_kuairand(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "k.trace"
    assert cli.main(["convert", "kuairand", str(log), "--out", str(out), "--compare-1k"]) == 0
    assert "1,181,699" in capsys.readouterr().out
    with Trace(out) as trace:
        found = [(one.user, one.time, one.items.tolist(), one.actions.tolist()) for one in trace.arrivals()]
    assert found == [(3, 3.0, [6], [65]), (2, 59.0, [6, 6], [65, 65]), (2, 60.0, [6], [65])]
    options = ["--force", "--interval", "0.5", "--longest-history", "2"]
    assert cli.main(["convert", "kuairand", str(log), "--out", str(out), *options]) == 0
    assert "1 events beyond the longest history left out" in capsys.readouterr().out


def test_convert_movielens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ratings.csv").write_text(RATINGS)
    out, report = tmp_path / "m.trace", tmp_path / "m.json"
    assert cli.main(["convert", "movielens", str(tmp_path), "--out", str(out), "--json", str(report)]) == 0
    assert "1 rows left out (1 with a rating outside 0.5 .. 5); first: line 6" in capsys.readouterr().out
    with Trace(out) as trace:
        found = [(one.user, one.time, one.items.tolist(), one.actions.tolist()) for one in trace.arrivals()]
        assert (trace.metadata.source.start_unix_s, trace.metadata.items, trace.metadata.actions) == (10, 4, 6)
    assert found == [(1, 20.0, [1, 3], [1, 4]), (1, 81.0, [2], [4]), (2, 85.0, [1], [5])]
    assert json.loads(report.read_text())["bad_rows"]["rows"] == 1


def test_show(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "k.trace"
    cli.main(["convert", "kuairand", str(log), "--out", str(out)])
    capsys.readouterr()
    assert cli.main(["show", str(out), "--head", "1", "--check", "--json", str(tmp_path / "s.json")]) == 0
    printed = capsys.readouterr().out
    assert "request 0: 3.000 s, user 3, history 1, new: items [6]" in printed
    assert "request 1" not in printed
    assert "checked" in printed
    assert json.loads((tmp_path / "s.json").read_text())["statistics"]["median_return_s"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show none.trace", "there is no file none.trace"),
        ("show log_standard_4_08_to_4_21_1k.csv", "is no trace"),
        ("convert kuairand none.csv --out a.trace", "there is no file or folder none.csv"),
        ("convert kuairand . --out none/a.trace", "there is no folder none"),
        ("convert kuairand . --out log_standard_4_08_to_4_21_1k.csv", "exists already"),
        ("convert kuairand . --out .", "exists already"),
        ("convert movielens . --out a.trace", "holds none of"),
        ("generate mt --out a.trace --items 10 --candidates 6", "need at least 12 items, not 10"),
        ("generate mt --scale 0.001 --out a.trace --json none/a.json", "none/a.json"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    monkeypatch.chdir(log.parent)
    assert cli.main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "generate",
        "generate mt",
        "generate mt --out a --scale 0",
        "generate mt --out a --scale nan",
        "convert kuairand a --out b --interval 0.0001",
        "convert kuairand a --out b --longest-history 0",
        "show a --head -1",
    ],
)
def test_wrong_arguments_exit_with_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments.split())
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["", "generate", "generate mt", "convert kuairand", "convert movielens", "show"])
def test_help_has_an_example(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*arguments.split(), "--help"])
    assert caught.value.code == 0
    assert "python -m perf.traces" in capsys.readouterr().out.partition("example")[2]


def test_a_full_disk_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make, "generated", full)
    assert cli.main(["generate", "mt", "--out", str(tmp_path / "a.trace")]) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "a.trace"
    command = [sys.executable, "-m", "perf.traces", "generate", "mt", "--out", str(out)]
    # A shell's background job, which a test run may be, starts with SIGINT ignored, and so would this.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob(".a.trace.*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "k.trace"
    cli.main(["convert", "kuairand", str(log), "--out", str(out)])
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "perf.traces", "show", str(out), "--head", "3"]
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
