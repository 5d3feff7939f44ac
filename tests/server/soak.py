"""Traffic without end, and everything about it that must hold: scores, errors, memory."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.lively import MODEL, assert_scores, forget, visit
from tests.server.raw import Raw

# Every so many visits of a client are compared with the dense reference, which costs more than the visit.
CHECK_EVERY = 7

KINDS = ("whole", "delta", "rewritten", "cancelled", "late", "forgotten")
SHARES = (0.45, 0.3, 0.08, 0.08, 0.04, 0.05)


@dataclass
class Soak:
    """Several clients with users of their own. `counts` are visits by kind; `failures` what must not have happened."""

    server: EmbeddedServer
    model: HSTU
    clients: int = 4
    users_each: int = 8
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*KINDS, "compared", "dropped"), 0))
    found: np.ndarray = field(default_factory=lambda: np.zeros(4, dtype=np.int64))
    failures: list[BaseException] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def run(self, stub: int, seconds: float, samples: int = 40) -> None:
        """Let the clients loose; the stub's resident memory is looked at `samples` times."""
        begin = time.monotonic()
        threads = [
            threading.Thread(target=self._client, args=(number, begin + seconds)) for number in range(self.clients)
        ]
        for thread in threads:
            thread.start()
        for sample in range(1, samples + 1):
            time.sleep(max(0.0, begin + seconds * sample / samples - time.monotonic()))
            self.memory.append(resident_bytes(stub))
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a client still waits for an answer"

    def growth(self) -> float:
        """Memory at the end over memory after the first quarter, as medians."""
        quarter = max(1, len(self.memory) // 4)
        settled = self.memory[quarter : 2 * quarter] or self.memory
        return float(np.median(self.memory[-quarter:]) / np.median(settled))

    def _client(self, number: int, until: float) -> None:
        rng = np.random.default_rng(number)
        first = 1 + number * self.users_each
        histories = {user: worlds.random_history(rng, int(rng.integers(1, 60))) for user in self._users(first)}
        known: dict[int | str, int] = {}
        with closing(Raw("grpc", self.server)) as raw:
            try:
                while time.monotonic() < until and not self.failures:
                    user = list(histories)[int(rng.integers(len(histories)))]
                    histories[user] = self._visit(raw, rng, user, histories[user], known)
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                self.failures.append(error)

    def _users(self, first: int) -> list[int | str]:
        return [user if user % 2 else f"user-{user}" for user in range(first, first + self.users_each)]

    def _visit(
        self, raw: Raw, rng: np.random.Generator, user: int | str, history: History, known: dict[int | str, int]
    ) -> History:
        """One request of a user; `known` is how much of the history the server has been told."""
        kind = str(rng.choice(KINDS, p=SHARES))
        if kind == "rewritten" or len(history) > 180:
            history = worlds.random_history(rng, int(rng.integers(1, 60)))
            known.pop(user, None)
        elif kind != "forgotten":
            more = worlds.random_history(rng, int(rng.integers(0, 5)))
            history = History(np.append(history.items, more.items), np.append(history.actions, more.actions))
        self.counts[kind] += 1
        if kind == "forgotten":
            raw.send(MODEL, forget(user))
            known.pop(user, None)
            return history
        start = max(0, known.get(user, 0) - int(rng.integers(0, 3))) if kind == "delta" else 0
        answer = self._ask(raw, rng, kind, user, history, start)
        if answer is None:  # it may have been computed or not: the next visit tells the whole history
            known.pop(user, None)
            self.counts["dropped"] += 1
            return history
        known[user] = len(history)
        self.found += answer["CACHE_INFO"][0, :4]
        if sum(self.counts.values()) % CHECK_EVERY == 0:
            assert_scores(answer, self.model, history)
            self.counts["compared"] += 1
        return history

    def _ask(
        self, raw: Raw, rng: np.random.Generator, kind: str, user: int | str, history: History, start: int
    ) -> dict[str, np.ndarray] | None:
        """The answer, or None if it was dropped as asked for."""
        request = visit(user, history, start)
        if kind == "cancelled":
            done = threading.Event()
            outcome: list[object] = []

            def take(result: object, error: object) -> None:
                outcome.extend((result, error))
                done.set()

            call = raw.client.async_infer(MODEL, raw._inputs(request.inputs), take, **raw._options(request))
            time.sleep(float(rng.choice([0.0, 0.001, 0.005])))
            call.cancel()
            assert done.wait(60), "a cancelled call was never answered"
            result, error = outcome
            if result is None:
                assert "cancel" in str(error).lower(), error
            return None
        options = raw._options(request)
        if kind == "late":
            options["timeout"] = 1
        try:
            result = raw.client.infer(MODEL, raw._inputs(request.inputs), **options)
        except InferenceServerException as error:
            if kind == "late" and "time was over" in str(error):
                return None
            raise
        return {name: result.as_numpy(name) for name in ("SCORES", "CACHE_INFO")}


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
