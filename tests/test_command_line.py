"""The command line's refusals, before anything starts: exit code 2 where the words are wrong, 1 where the world is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtserve_backend import repository
from mtserve_backend.cli import main

WEIGHTS = repository.shipped() / repository.MODEL / "1" / "weights"


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """`mtserve serve` sets handlers of its own."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def ended(words: list[str]) -> int:
    """The exit code, also where argparse ends it."""
    try:
        return main(words)
    except SystemExit as error:
        return int(error.code or 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--set", "cache_mod=device"], "did you mean 'cache_mode'?"),
        (["serve", "--set", "cache_mode"], "'cache_mode' is not KEY=VALUE"),
        (["serve", "--set", "cache_mode="], "'cache_mode=' has no value"),
        (["serve", "--weights", ""], "argument --weights: it is empty"),
        (["serve", "--repository", ""], "argument --repository: it is empty"),
        (["serve", "--address", " "], "argument --address: it is empty"),
        (["serve", "--log-verbose", "loud"], "loud is not a level"),
        (["serve", "--exit-timeout", "-1"], "-1 is not a time"),
        (["serve", "--ready-timeout", "inf"], "inf is not a time"),
        (["serve", "--ready-timeout", "soon"], "'soon' is not a number"),
        (["package", "--model-dir", str(WEIGHTS), "--out", ""], "argument --out: it is empty"),
        (["package", "--model-dir", str(WEIGHTS), "--out", "x", "--gpus", "first"], "'first' is no list of GPUs"),
        (["top", "--interval", "0"], "0 is not an interval"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--set", "threads=1", "--config", "tpu"], "There is no configuration 'tpu'"),
        (["serve", "--repository", "/nowhere"], "/nowhere does not exist"),
        (["serve", "--repository", "/nowhere", "--set", "threads=1"], "/nowhere does not exist"),
        (["serve", "--repository", str(WEIGHTS)], "it looks like a model's weights, which are named with --weights"),
        (["serve", "--repository", str(WEIGHTS.parent.parent)], "it is a model itself"),
        (["serve", "--http-port", "70000"], "70000 is not a port"),
        (["serve", "--http-port", "9000", "--grpc-port", "9000"], "Port 9000 is given twice"),
        (["serve", "--address", "192.0.2.1"], "Cannot listen on '192.0.2.1'"),
        (["serve", "--address", "a..b"], "Cannot listen on 'a..b'"),
        (["top", "localhost:1", "--once"], "localhost:1"),
        (["top"], "`mtserve top --once` prints one frame"),
    ],
)
def test_what_cannot_be(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(words) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "doctor", "package", "top"])
def test_help_shows_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "exit codes:" in text


def test_nobody_reads_on(tmp_path: Path) -> None:
    """As in `mtserve doctor | head -0`."""
    command = [sys.executable, "-m", "mtserve_backend.cli", "doctor", "--grpc-port=0", "--http-port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert said == ""
