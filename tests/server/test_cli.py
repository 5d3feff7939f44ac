"""`mtserve` as a user runs it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import mtserve_backend
from mtserve_backend.cli import main
from tests.server.echo import write_echo

ROOT = Path(mtserve_backend.__file__).parent.parent
FREE_PORTS = ["--grpc-port=0", "--http-port=0", "--metrics-port=0"]


class Serve:
    """`mtserve serve` running in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mtserve_backend.cli", "serve", *FREE_PORTS, *arguments],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        """The line that holds the text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"never said '{text}':\n{''.join(self.lines)}")

    def end(self) -> tuple[int, str]:
        """The exit code, and all that it said."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        return self.process.wait(60), "".join(self.lines)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_serve_until_a_signal(echo_repository: Path, signum: signal.Signals) -> None:
    serve = Serve(f"--repository={echo_repository}")
    before = set(os.listdir("/dev/shm"))
    started = serve.read_until("tritonserver ")
    url = re.findall(r"http://localhost:\d+", started)[0]
    serve.read_until("Serving ")
    assert urllib.request.urlopen(f"{url}/v2/models/echo/ready").status == 200
    serve.process.send_signal(signum)
    code, said = serve.end()
    assert code == 0, said
    assert "successfully unloaded 'echo'" in said, "the server's own log is copied to stderr"
    assert "Traceback" not in said
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("mtserve-")]


def test_a_signal_while_loading(tmp_path: Path) -> None:
    serve = Serve(f"--repository={write_echo(tmp_path, 'time.sleep(3)')}", "--exit-timeout=0")
    serve.read_until("loading: echo")
    serve.process.send_signal(signal.SIGTERM)
    code, said = serve.end()
    assert "Traceback" not in said
    assert code in (0, 1)


def test_serve_a_failing_model(tmp_path: Path) -> None:
    serve = Serve(f"--repository={write_echo(tmp_path, 'raise ValueError(1234)')}", f"--log-file={tmp_path / 'log'}")
    code, said = serve.end()
    assert code == 1
    assert "ValueError: 1234" in said
    assert f"The whole log: {tmp_path / 'log'}" in said
    assert "Traceback" not in said


def test_serve_ends_with_its_server(echo_repository: Path) -> None:
    serve = Serve(f"--repository={echo_repository}")
    pid = int(re.findall(r"tritonserver (\d+)", serve.read_until("tritonserver "))[0])
    serve.read_until("Serving ")
    os.kill(pid, signal.SIGKILL)
    code, said = serve.end()
    assert code == 1
    assert f"ended by itself with code {128 + signal.SIGKILL}" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--set", "cache_mod=device"], "did you mean 'cache_mode'?"),
        (["serve", "--set", "cache_mode"], "'cache_mode' is not KEY=VALUE"),
        (["serve", "--set", "threads=1", "--config", "tpu"], "There is no configuration 'tpu'"),
        (["serve", "--repository", "/nowhere"], "/nowhere does not exist"),
        (["serve", "--repository", "/nowhere", "--set", "threads=1"], "/nowhere"),
        (["serve", "--http-port", "70000"], "70000 is not a port"),
        (["serve", "--http-port", "9000", "--grpc-port", "9000"], "Port 9000 is given twice"),
    ],
)
def test_user_errors_are_sentences(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(arguments) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert said in capsys.readouterr().err


def test_help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("serve", "doctor"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert "examples:" in text
        assert "exit codes:" in text


def test_doctor_finds_nothing_wrong(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--weights", str(weights), *FREE_PORTS])
    report = capsys.readouterr().out
    assert code == 0, report
    assert re.search(r"^ok +numpy +1\.", report, re.MULTILINE)
    assert re.search(r"^ok +memory +the pools take 1\.\d GiB", report, re.MULTILINE)


def test_doctor_names_what_is_wrong(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ["--grpc-port", str(port), "--http-port=0", "--metrics-port=0"]
        code = main(["doctor", "--json", "--weights", str(weights), "--set", "host_cache=100TiB", *ports])
    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    problems = {check for check, finding in findings.items() if finding["status"] == "problem"}
    assert code == 1
    assert problems == {"grpc port", "memory"}
    assert "lower host_cache" in findings["memory"]["text"]


def test_doctor_misses_the_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--weights", str(tmp_path), *FREE_PORTS]) == 1
    assert "name the weights' folder with --weights" in capsys.readouterr().out
