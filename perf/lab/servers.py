"""Real servers to measure: one tritonserver with the same model in several cache modes, and ways to ask it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mtserve_client import Events, Ranking, RankingClient

from mtserve_backend.commands.scrape import Scrape, scrape
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models import weights
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.repository import write_model
from perf.lab.presets import Preset
from perf.visits import Visit

# A long history recomputed on a busy machine takes its time, and is measured all the same.
PATIENCE_S = 600.0
# How long a model may take to publish what it counted, which it does about once a second.
PUBLISHED_S = 20.0
LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Answer:
    """One request's: seconds until it was there, and where its history was found, in tokens."""

    seconds: float
    ranking: Ranking

    @property
    def tokens(self) -> tuple[int, int, int, int]:
        cache = self.ranking.cache
        return cache.device, cache.host, cache.recomputed, cache.new


class Served:
    """One model of a running server."""

    def __init__(self, mode: str, client: RankingClient, metrics_url: str) -> None:
        self.mode = mode
        self._client = client
        self._metrics_url = metrics_url
        self._told = 0
        self._gate = threading.Lock()
        self._pool = ThreadPoolExecutor(64, thread_name_prefix=f"ask-{mode}")

    def ask(self, visit: Visit) -> Answer:
        begin = time.perf_counter()
        ranking = self._client.rank(visit.user, history=Events(visit.items, visit.actions), candidates=visit.candidates)
        answer = Answer(time.perf_counter() - begin, ranking)
        with self._gate:
            self._told += sum(answer.tokens)
        return answer

    def ask_together(self, visits: Sequence[Visit]) -> tuple[float, list[Answer]]:
        """All at once: seconds until the last is answered, and the answers."""
        if len(visits) == 1:
            answer = self.ask(visits[0])
            return answer.seconds, [answer]
        begin = time.perf_counter()
        answers = list(self._pool.map(self.ask, visits))
        return time.perf_counter() - begin, answers

    def step_seconds(self) -> dict[str, float]:
        """Seconds spent in each step of Algorithm 1 since the start, as the metrics port says."""
        return self._published().by("mtserve_step_seconds_total", "step", self.mode)

    def waited_seconds(self) -> float:
        """Seconds that waves waited for loads since the start."""
        return self._published().total("mtserve_onload_wait_seconds_sum", self.mode)

    def _published(self) -> Scrape:
        """The metrics once they hold every answer so far: every history token is in one of them."""
        deadline = time.monotonic() + PUBLISHED_S
        while True:
            found = scrape(self._metrics_url)
            counted = found.total("mtserve_history_tokens_total", self.mode)
            if counted == self._told:
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.mode}: {counted:.0f} tokens are on the metrics port, {self._told} were told")
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def knobs(preset: Preset, device_tokens: int, host_tokens: int, longest: int) -> dict[str, str]:
    """Pools in tokens. The onload buffer holds the largest batch's longest histories, as the paper's does."""
    return {
        "page_tokens": str(preset.page_tokens),
        "chunk_tokens": str(preset.chunk_tokens),
        "device_cache": f"{device_tokens} tokens",
        "onload_buffer": f"{longest} tokens",
        "host_cache": f"{host_tokens} tokens",
        "dtype": "bfloat16" if preset.gpu else "float32",
        "request_timeout_s": f"{PATIENCE_S:g}",
        "offload_quota_tokens": str(max(65_536, preset.chunk_tokens)),
    }


@contextmanager
def serving(preset: Preset, parameters: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Served]]:
    """A server with a model for each name in `parameters`, whose knobs these are."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mtserve-perf-")))
        weights.save(HSTU(preset.model), folder / "weights")
        repository = folder / "repository"
        for name, values in parameters.items():
            write_model(repository, name, folder / "weights", values, config="gpu" if preset.gpu else "cpu")
        server = stack.enter_context(EmbeddedServer(repository=repository, ready_timeout=PATIENCE_S))
        served = {}
        for name in parameters:
            client = stack.enter_context(RankingClient(server.grpc_url, model=name, timeout_s=PATIENCE_S))
            served[name] = Served(name, client, server.metrics_url)
            stack.callback(served[name].close)
        yield served
