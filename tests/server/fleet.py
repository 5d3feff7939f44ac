"""Several real servers with the shipped model, each killed and started again on its own ports; and a load of users."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mtserve_client import Events, RankingClient

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer

SMALL = {"device_cache": "16MiB", "onload_buffer": "4MiB", "host_cache": "32MiB", "threads": "1"}
CANDIDATES = [50, 100, 181, 258, 300]


def history(user: int, length: int) -> Events:
    return Events.of([((user + 7 * i) % 1600 + 1, 1 + i % 5) for i in range(length)])


class Member:
    """One server of a fleet. Its ports stay the same from its first start on."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self._options = options
        self._ports: dict[str, int] = {}
        self.server = self._new()

    def start(self) -> None:
        self.server.start()
        self._ports = {
            "grpc_port": int(self.server.grpc_url.rpartition(":")[2]),
            "http_port": int(self.server.http_url.rpartition(":")[2]),
        }

    def kill(self) -> None:
        """As a machine's out-of-memory killer would: no answer to what is under way, ports closed."""
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait(10)
        self.server.stop()

    def start_again(self) -> None:
        self.server = self._new()
        self.start()

    def stop(self) -> None:
        self.server.stop()

    def _new(self) -> EmbeddedServer:
        return EmbeddedServer(self._folder, exit_timeout=5, **self._ports, **self._options)


@contextmanager
def fleet(folder: Path, members: int, models: tuple[str, ...] = ("hstu",), **options: Any) -> Iterator[list[Member]]:
    for model in models:
        repository.write_model(folder, model, parameters=SMALL)
    with ExitStack() as stack:
        started = []
        for _ in range(members):
            member = Member(folder, **options)
            stack.callback(member.stop)
            member.start()
            started.append(member)
        yield started


class Load:
    """Threads that call for one user after the other, with histories that grow; every answer is checked."""

    def __init__(self, client: RankingClient, users: list[int], threads: int = 4) -> None:
        self.client = client
        self.users = users
        self.lengths = dict.fromkeys(users, 20)
        self.latencies: list[float] = []
        self.wrong: list[object] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(users[part::threads],), daemon=True) for part in range(threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, calls: int) -> None:
        """Until so many more calls have been answered."""
        wanted, deadline = len(self.latencies) + calls, time.monotonic() + 60
        while len(self.latencies) < wanted and not self.wrong:
            assert time.monotonic() < deadline, f"{wanted - len(self.latencies)} of {calls} calls were not answered"
            time.sleep(0.01)

    def _run(self, users: list[int]) -> None:
        while not self._stop.is_set():
            for user in users:
                try:
                    self._visit(user)
                except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
                    self.wrong.append(error)
                if self._stop.is_set():
                    return

    def _visit(self, user: int) -> None:
        length = self.lengths[user] = self.lengths[user] % 200 + 1
        began = time.monotonic()
        answer = self.client.rank(user, history(user, length), candidates=CANDIDATES)
        self.latencies.append(time.monotonic() - began)
        if answer.cache.history_length != length or not np.isfinite(answer.scores).all():
            self.wrong.append((user, length, answer.cache))
