"""The real HAProxy with the configuration of deploy/haproxy, in front of servers of a test."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import mtserve_backend
from perf.debian import unpacked

CONFIG = Path(mtserve_backend.__file__).parent.parent / "deploy" / "haproxy" / "haproxy.cfg"
_LIBRARIES = {
    "liblua5.3-0": "liblua5.3.so.0",
    "libopentracing-c-wrapper0": "libopentracing-c-wrapper.so.0",
    "libopentracing1": "libopentracing.so.1",
    "libpcre2-8-0": "libpcre2-8.so.0",
}


def find() -> tuple[Path, dict[str, str]]:
    """The program and its environment: the machine's, or Debian's, fetched. Raises DebianError."""
    here = shutil.which("haproxy")
    if here is not None:
        return Path(here), dict(os.environ)
    program = unpacked("haproxy", "usr/sbin/haproxy")
    folders = [str(unpacked(name, f"usr/lib/x86_64-linux-gnu/{file}").parent) for name, file in _LIBRARIES.items()]
    return program, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Balancer:
    """HAProxy with ports of its own. `servers`: gRPC and HTTP ports on this machine, by name."""

    def __init__(self, folder: Path, servers: dict[str, tuple[int, int]], variables: dict[str, str] | None = None):
        self._program, self._environment = find()
        self._environment |= variables or {}
        self._folder = folder
        self._ports = {8001: free_port(), 8000: free_port(), 8404: free_port()}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.servers = servers

    @property
    def grpc_url(self) -> str:
        return f"localhost:{self._ports[8001]}"

    @property
    def http_url(self) -> str:
        return f"http://localhost:{self._ports[8000]}"

    @property
    def status_url(self) -> str:
        return f"http://localhost:{self._ports[8404]}"

    @property
    def log(self) -> str:
        return (self._folder / "haproxy.log").read_text()

    def __enter__(self) -> Balancer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self) -> None:
        """Start, or, with other servers than before, take over from the process that runs: a reload."""
        config = self._folder / "haproxy.cfg"
        config.write_text(self.configuration())
        words = [str(self._program), "-db", "-f", str(config)]
        if self._processes:
            words += ["-sf", str(self._processes[-1].pid)]
        with (self._folder / "haproxy.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(words, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        self.wait_until(lambda up: up == set(self.servers))

    def wait_until(self, satisfied: object, seconds: float = 30.0) -> None:
        """Until the names of the servers that are up satisfy this."""
        deadline = time.monotonic() + seconds
        while not satisfied(self.up()):  # type: ignore[operator]
            assert self._processes[-1].poll() is None, self.log
            assert time.monotonic() < deadline, f"up: {self.up()}\n{self.log[-2000:]}"
            time.sleep(0.05)

    def up(self) -> set[str]:
        """Servers that are up in both backends, as the newest process sees it."""
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{self.status_url}/metrics", timeout=5) as answer:
                text = answer.read().decode()
            found = re.findall(r'haproxy_server_status\{proxy="(\w+)_servers",server="([^"]+)",state="UP"\} 1', text)
            return {name for _, name in found if {("grpc", name), ("http", name)} <= set(found)}
        return set()

    def server_of(self, digest: str) -> str:
        """Which server the digest's user is with."""
        request = urllib.request.Request(f"{self.http_url}/v2/health/live", headers={"x-mtserve-route": digest})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.headers["x-mtserve-server"])

    def configuration(self) -> str:
        """The shipped one, with these ports and addresses."""
        text = CONFIG.read_text()
        for shipped, port in self._ports.items():
            text = text.replace(f"bind :{shipped} ", f"bind 127.0.0.1:{port} ").replace(
                f"bind :{shipped}\n", f"bind 127.0.0.1:{port}\n"
            )
        text = re.sub(r"^    server .*\n", "", text, flags=re.MULTILINE)
        for kind, column in (("grpc", 0), ("http", 1)):
            lines = ""
            for number, (name, ports) in enumerate(self.servers.items(), 1):
                track = f" track http_servers/{name}" if kind == "grpc" else ""
                lines += f"    server {name} 127.0.0.1:{ports[column]} id {number}{track}\n"
            text = re.sub(rf"(backend {kind}_servers .*\n    default-server .*\n)", rf"\g<1>{lines}", text)
        return text

    def stop(self) -> int:
        """In order; the exit code."""
        self._processes[-1].send_signal(signal.SIGUSR1)
        return self._processes[-1].wait(30)
