"""The real Prometheus and promtool, as Debian packages them; and one running, for as long as a `with` block lasts."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from perf.debian import unpacked

_START_S = 30.0


class PrometheusError(RuntimeError):
    """It did not start, or refused a query; the text is its own."""


def program(name: str = "prometheus") -> Path:
    """`prometheus` or `promtool`. Raises `DebianError` where it cannot be had."""
    return unpacked("prometheus", f"usr/bin/{name}")


def promtool(*words: str) -> str:
    """What it printed. Raises PrometheusError with that if it found fault."""
    done = subprocess.run(
        [str(program("promtool")), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PrometheusError(f"promtool {' '.join(words)}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Prometheus:
    """Scrapes `targets` (host:port) and evaluates `rules` every `interval_s` seconds."""

    def __init__(self, targets: Sequence[str], rules: Sequence[Path] = (), interval_s: int = 1) -> None:
        self._settings = {
            "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
            "rule_files": [str(path.resolve()) for path in rules],
            "scrape_configs": [{"job_name": "triton", "static_configs": [{"targets": list(targets)}]}],
        }

    def __enter__(self) -> Prometheus:
        words = program()
        self._folder = tempfile.TemporaryDirectory(prefix="mtserve-prometheus-")
        folder = Path(self._folder.name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(self._settings), encoding="utf-8")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{address}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(words), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}", f"--web.console.templates={folder}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            self._await_start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of the HTTP API, as in `get("query", query="up")`."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{parameters or path}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query, with their values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        said = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise PrometheusError(f"Prometheus did not start:\n{said}")
