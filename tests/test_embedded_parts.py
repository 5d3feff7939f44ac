"""The parts of the embedded server that need no server: what they refuse, and in which words."""

import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtserve_backend.embedded import ServerError, command, installation, ports, server_log, shared_memory
from mtserve_backend.embedded.keeper import Job, Keeper, remove_shared_memory

FAILED = """\
E1201 03:45:32.464951 4432 server.cc:241] "CudaDriverHelper has not been initialized."
I1201 03:45:35.176830 4432 pb_stub.cc:366] "Failed to initialize Python stub: ValueError: no such mode"
E1201 03:45:35.630761 4432 backend_model.cc:692] "ERROR: Failed to create instance: ValueError: no such mode\\n\\nAt:\\n  model.py(6)\\n"
E1201 03:45:35.630930 4432 model_lifecycle.cc:642] "failed to load 'hstu' version 1: Internal: ValueError: no such mode\\n\\nAt:\\n  model.py(6)\\n"
I1201 03:45:35.630948 4432 model_lifecycle.cc:777] "failed to load 'hstu'"
+-------+---------+-----------------------------------------------+
error: creating server: Internal - failed to load all models
"""  # noqa: E501


def test_a_failure_is_told_once() -> None:
    assert server_log.errors(FAILED) == [
        "ValueError: no such mode\n\nAt:\n  model.py(6)",
        "error: creating server: Internal - failed to load all models",
    ]
    assert server_log.latest(FAILED) == "failed to load 'hstu'"
    assert server_log.errors("") == []
    assert server_log.latest("") == ""


def test_a_log_is_read_from_where_the_run_began(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert server_log.read(log) == ""
    log.write_text("old new")
    assert server_log.read(log, start=4) == "new"
    assert server_log.read(log, start=2, limit=3) == "new"


def test_the_follower_copies_what_comes(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", io.StringIO()
    log.write_text("before ")
    follower = server_log.Follower(log, start=7, stream=copy, poll_seconds=0.01)
    with log.open("a") as file:
        file.write("after")
    follower.close()
    assert copy.getvalue() == "after"


def test_the_follower_survives_an_emptied_log(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", io.StringIO()
    log.write_text("a long line that is taken away")
    follower = server_log.Follower(log, start=30, stream=copy, poll_seconds=0.01)
    log.write_text("anew")
    follower.close()
    assert copy.getvalue() == "anew"


def test_free_ports_differ() -> None:
    chosen = ports.choose("127.0.0.1", {"grpc": 0, "http": 0, "metrics": 0})
    assert len(set(chosen.values())) == 3
    assert all(ports.is_free("127.0.0.1", port) for port in chosen.values())


def test_a_listening_port_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not ports.is_free("127.0.0.1", taken.getsockname()[1])
        assert not ports.is_free("0.0.0.0", taken.getsockname()[1])


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ServerError, match=r"Cannot listen on '192\.0\.2\.1'"):
        ports.choose("192.0.2.1", {"grpc": 0})


def test_shared_memory_missing_or_small(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"does not exist.*--shm-size=1g"):
        shared_memory.check(folder=tmp_path / "nothing")
    with pytest.raises(ServerError, match=r"has \d+ MiB free; the Python backend needs 1099511627776 MiB.*--shm-size"):
        shared_memory.check(needed=1 << 60, folder=tmp_path)
    shared_memory.check()


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed", lambda name: "2.1.3")
    with pytest.raises(ServerError, match=r"numpy 2\.1\.3 is installed.*silently empty.*pip install 'numpy<2'"):
        installation.find()
    monkeypatch.setattr(installation, "installed", lambda name: None)
    with pytest.raises(ServerError, match="numpy is not installed"):
        installation.find()


def test_pytriton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerError, match=r"not installed: install it with `pip install 'mtserve\[server\]'`"):
        installation.find()


def test_no_stub_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PYTHON", "3.99")
    with pytest.raises(ServerError, match=r"no stub for Python 3\.99 \(it has .*3\.11"):
        installation.find()


def test_libpython_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "LIBPYTHON", "libpython3.99.so.1.0")
    monkeypatch.setattr(installation, "PYTHON", "3.99")
    with pytest.raises(ServerError, match=r"`apt-get install libpython3\.99`.*--enable-shared pyenv install 3\.99"):
        installation.find_libpython()


def test_libpython_of_the_system_is_the_second_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / installation.LIBPYTHON
    library.touch()
    listing = f"\t{installation.LIBPYTHON} (libc6,x86-64) => {library}\n"
    done = subprocess.CompletedProcess([], 0, stdout=listing, stderr="")
    monkeypatch.setattr(installation, "_library_folders", list)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert installation.find_libpython() == library


def test_the_layout(tmp_path: Path) -> None:
    found = installation.find()
    environment = installation.lay_out(found, tmp_path)
    backend = installation.backends_folder(tmp_path) / "python"
    assert (backend / "libtriton_python.so").is_file()
    assert os.access(backend / "triton_python_backend_stub", os.X_OK)
    assert Path(environment["PATH"].split(os.pathsep)[0], "python3").samefile(sys.executable)
    assert environment["LD_LIBRARY_PATH"].split(os.pathsep)[:2] == [str(found.libraries), str(tmp_path / "lib")]
    assert os.listdir(tmp_path / "lib") == [installation.LIBPYTHON]
    assert os.listdir(installation.work_folder(tmp_path)) == ["mtserve_backend"]


def test_an_environment_without_python3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A Python outside any environment gets a link by that name ...
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python-of-mine"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    environment = installation.lay_out(installation.find(), tmp_path / "private")
    assert Path(environment["PATH"].split(os.pathsep)[0], "python3").samefile(python)
    # ... but an environment is found by where its python3 lies.
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ServerError, match="has no bin/python3"):
        installation.lay_out(installation.find(), tmp_path / "other")


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(**more: str) -> list[str]:
        return command.tritonserver_command(
            Path("ts"),
            Path("/models"),
            Path("/b"),
            ports={"grpc": 1, "http": 2},
            address="::1",
            shm_prefix="p-",
            exit_timeout=7,
            **more,  # type: ignore[arg-type]
        )

    monkeypatch.setattr(command, "_NVIDIA_DEVICE", Path("/dev/null"))
    assert "--backend-config=python,shm-region-prefix-name=p-" in words()
    assert {"--grpc-port=1", "--http-address=::1", "--exit-timeout-secs=7"} < set(words())
    assert not any("gpu" in word or "config-name" in word for word in words())
    assert "--model-config-name=gpu" in words(model_config_name="gpu")
    monkeypatch.setattr(command, "_NVIDIA_DEVICE", Path("/dev/no such device"))
    assert "--allow-gpu-metrics=false" in words()


def test_only_regions_of_the_prefix_are_removed(tmp_path: Path) -> None:
    for name in ("mine-1", "mine-2", "yours-1"):
        (tmp_path / name).touch()
    assert remove_shared_memory("mine-", tmp_path) == ["mine-1", "mine-2"]
    assert os.listdir(tmp_path) == ["yours-1"]


def keeper(tmp_path: Path, *words: str, **more: object) -> Keeper:
    (tmp_path / "private").mkdir()
    settings: dict[str, object] = {
        "command": list(words),
        "parent": os.getppid(),
        "work_folder": str(tmp_path),
        "log": str(tmp_path / "log"),
        "log_is_private": True,
        "shm_prefix": "mtserve-no-such-region-",
        "private_folder": str(tmp_path / "private"),
        "patience": 0.2,
    }
    return Keeper(Job(**(settings | more)), io.StringIO())  # type: ignore[arg-type]


class TestKeeper:
    """In this process, with another command than tritonserver."""

    @pytest.fixture(autouse=True)
    def no_signal_handlers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("signal.signal", lambda *_: None)

    def test_passes_the_exit_code_and_the_output_on(self, tmp_path: Path) -> None:
        assert keeper(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 3").run() == 3
        assert (tmp_path / "log").read_text() == "out\nerr\n"
        assert (tmp_path / "private").is_dir()

    def test_stops_it_when_the_parent_is_gone(self, tmp_path: Path) -> None:
        assert keeper(tmp_path, "sleep", "60", parent=1 << 30).run() == -15
        assert not (tmp_path / "private").exists()

    def test_kills_what_does_not_stop(self, tmp_path: Path) -> None:
        started = time.monotonic()
        stubborn = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
        runner = keeper(tmp_path, "sh", "-c", stubborn)
        runner.ask_to_stop(15, None)
        assert runner.run() in (-9, -15)  # -15 when asked before the trap was set
        assert time.monotonic() - started < 5

    def test_kills_what_the_server_leaves_running(self, tmp_path: Path) -> None:
        keeper(tmp_path, "sh", "-c", "sleep 60 & echo $!").run()
        orphan = int((tmp_path / "log").read_text())
        deadline = time.monotonic() + 5
        while Path(f"/proc/{orphan}").exists() and "Z" not in Path(f"/proc/{orphan}/stat").read_text().split()[2]:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_empties_a_private_log_that_grows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mtserve_backend.embedded.keeper._PRIVATE_LOG_LIMIT", 1000)
        keeper(tmp_path, "sh", "-c", "head -c 5000 /dev/zero; sleep 0.5; echo tail").run()
        assert (tmp_path / "log").stat().st_size < 1000
