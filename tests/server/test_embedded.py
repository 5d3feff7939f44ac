"""The embedded server: it starts, answers, ends, and leaves nothing behind, however it ends."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

import mtserve_backend
from mtserve_backend.embedded import EmbeddedServer, ServerError, ports
from tests.server.echo import CONFIG, write_echo

ROOT = Path(mtserve_backend.__file__).parent.parent
SEQUENCE = "sequence_batching { oldest { max_candidate_sequences: 4 } max_sequence_idle_microseconds: 60000000 }"


def ask(server: EmbeddedServer, **sequence: object) -> list[int]:
    """One request to the echo model."""
    tensor = triton.InferInput("X", [1, 3], "INT64")
    tensor.set_data_from_numpy(np.array([[1, 2, 3]]))
    with contextlib.closing(triton.InferenceServerClient(server.grpc_url)) as client:
        answer = client.infer("echo", [tensor], **sequence)
    return list(answer.as_numpy("Y")[0])


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    """The direct child processes."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def regions(prefix: str) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


class Traces:
    """What a running server could leave behind, remembered while it runs."""

    def __init__(self, pid: int, prefix: str, folder: Path) -> None:
        self.pids = [pid, *children(pid)]
        self.prefix = prefix
        self.folder = folder
        assert len(self.pids) == 2, "the server and one stub"
        assert all(alive(pid) for pid in self.pids)
        assert regions(prefix)
        assert folder.is_dir()

    @classmethod
    def of(cls, server: EmbeddedServer) -> "Traces":
        assert server.log_path is not None
        return cls(server.pid, server.shm_prefix, server.log_path.parent)

    def gone(self) -> bool:
        return not (any(map(alive, self.pids)) or regions(self.prefix) or self.folder.exists())


def test_starts_answers_and_stops(echo_repository: Path) -> None:
    with EmbeddedServer(echo_repository) as server:
        traces = Traces.of(server)
        assert ask(server) == [2, 4, 6]
        assert "nv_inference_count" in urllib.request.urlopen(server.metrics_url).read().decode()
        assert server.errors() == []
        assert server.wait(0) is None
        assert server.stop() == 0
        assert traces.gone()
        assert server.stop() is None  # twice is harmless


def test_can_be_started_again(echo_repository: Path) -> None:
    server = EmbeddedServer(echo_repository)
    for _ in range(2):
        server.start()
        assert ask(server) == [2, 4, 6]
        server.stop()


def test_the_stub_runs_this_interpreter_and_this_package(echo_repository: Path) -> None:
    with EmbeddedServer(echo_repository) as server:
        assert server.log_path is not None
        log = server.log_path.read_text()
    assert f"prefix={sys.prefix} numpy={np.__file__}" in log
    line = next(line for line in log.splitlines() if "ours=" in line)
    ours = Path(line.split("ours=")[1].strip('"'))
    assert ours.parent.name == "mtserve_backend"
    assert ours.parent.parent.name == "import"  # the link to the package that started the server


def test_log_file_is_appended_to_and_kept(echo_repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir()
    log.write_text('E0101 00:00:00.000000 1 old.cc:1] "of an earlier run"\n')
    with EmbeddedServer(echo_repository, log_file=log) as server:
        assert server.errors() == []
    assert "of an earlier run" in log.read_text()
    assert "successfully loaded 'echo'" in log.read_text()


def test_a_taken_port_is_refused(echo_repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"Port {port} \(http\) is in use .* choose another with --http-port"):
            EmbeddedServer(echo_repository, http_port=port).start()


def test_a_chosen_port_taken_meanwhile_is_replaced(echo_repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = ports.choose
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def unlucky(address: str, wanted: dict[str, int]) -> dict[str, int]:
            calls.append(wanted)
            chosen = choose(address, wanted)
            return chosen if len(calls) > 1 else {**chosen, "grpc": taken.getsockname()[1]}

        monkeypatch.setattr(ports, "choose", unlucky)
        with EmbeddedServer(echo_repository) as server:
            assert ask(server) == [2, 4, 6]
            prefix = server.shm_prefix
    assert len(calls) == 2
    assert regions(prefix) == []


def test_a_failing_model_is_quoted(tmp_path: Path) -> None:
    write_echo(tmp_path, "raise ValueError('page_tokens must be above 0')")
    server = EmbeddedServer(tmp_path)
    with pytest.raises(ServerError, match="page_tokens must be above 0") as failure:
        server.start()
    assert str(failure.value).count("page_tokens must be above 0") == 1, "told once, though Triton tells it thrice"
    assert "model.py(" in str(failure.value)
    assert server.pid == 0
    assert regions(server.shm_prefix) == []


def test_a_model_that_does_not_load_in_time(tmp_path: Path) -> None:
    write_echo(tmp_path, "time.sleep(60)")
    server = EmbeddedServer(tmp_path, ready_timeout=2, exit_timeout=0)
    with pytest.raises(ServerError, match="not ready after 2 s"):
        server.start()
    assert regions(server.shm_prefix) == []


def test_no_repository() -> None:
    with pytest.raises(ServerError, match="/nowhere/at/all does not exist"):
        EmbeddedServer("/nowhere/at/all").start()


def test_a_server_that_is_killed_leaves_nothing(echo_repository: Path) -> None:
    with EmbeddedServer(echo_repository) as server:
        traces = Traces.of(server)
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(10) == 128 + signal.SIGKILL
        assert regions(server.shm_prefix) == []
        assert not any(map(alive, traces.pids))
    assert traces.gone()


def test_a_stop_takes_the_exit_timeout_when_a_sequence_is_open(tmp_path: Path) -> None:
    write_echo(tmp_path, model_config=CONFIG + SEQUENCE)
    with EmbeddedServer(tmp_path, exit_timeout=1) as server:
        traces = Traces.of(server)
        ask(server, sequence_id=5, sequence_start=True)
        assert server.stop() != 0
    assert traces.gone()


def test_a_stop_takes_the_exit_timeout_when_an_http_connection_is_open(echo_repository: Path) -> None:
    with EmbeddedServer(echo_repository, exit_timeout=1) as server:
        traces = Traces.of(server)
        connection = http.client.HTTPConnection(server.http_host)
        with contextlib.closing(connection):
            connection.request("GET", "/v2/health/ready")
            assert connection.getresponse().read() == b""
            assert server.stop() != 0
    assert traces.gone()


def test_the_thread_that_starts_it_may_end(echo_repository: Path) -> None:
    server = EmbeddedServer(echo_repository)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(server.stop)
        time.sleep(1)
        assert ask(server) == [2, 4, 6]


_LAUNCHER = """
import sys, time
from mtserve_backend.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start()
print(server.pid, server.shm_prefix, server.log_path.parent, flush=True)
time.sleep(600)
"""


@pytest.fixture
def launcher(echo_repository: Path) -> Iterator[tuple["subprocess.Popen[str]", Traces]]:
    """Another process that has started a server, and what that server could leave behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(echo_repository)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        pid, prefix, folder = process.stdout.readline().split()
        yield process, Traces(int(pid), prefix, Path(folder))
        process.kill()
        # The keeper does this, unless a test has killed it too.
        shutil.rmtree(folder, ignore_errors=True)


def test_a_killed_parent_takes_the_server_along(launcher: tuple["subprocess.Popen[str]", Traces]) -> None:
    process, traces = launcher
    process.kill()
    assert within(15, traces.gone)


def test_a_killed_keeper_takes_the_server_along(launcher: tuple["subprocess.Popen[str]", Traces]) -> None:
    process, traces = launcher
    (keeper,) = children(process.pid)
    os.kill(keeper, signal.SIGKILL)
    assert within(15, lambda: not any(map(alive, traces.pids)) and not regions(traces.prefix))
