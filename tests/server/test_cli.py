"""`mtserve` as a user runs it."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import mtserve_backend
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
    assert "tritonserver was killed (SIGKILL)" in said
