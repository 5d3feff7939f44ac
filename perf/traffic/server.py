"""A model of a real Triton server, through gRPC and the client package."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import tritonclient.grpc as triton
from mtserve_client import Events, RankingClient
from mtserve_client.errors import MtserveError

from mtserve_backend.commands.scrape import scrape
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.repository import write_model
from mtserve_backend.steps import STEPS
from perf.traffic import interrupts
from perf.traffic.nothing import NOTHING, do_nothing
from perf.traffic.target import PATIENCE_S, Answer, Served, TargetFailed
from perf.visits import Visit

# Behind an answer the server saves states, and nothing outside tells when it is done. The pause comes before the next
# request; a chunk of the paper's model takes a tenth of it.
SETTLE_S = 0.2
# How long a model may take to publish what it counted, which it does about once a second (docs/metrics.md).
PUBLISHED_S, LOOK_EVERY_S = 20.0, 0.1
# For servers that are sent batches: all requests of one are there within this; 100 microseconds, as shipped, split it.
GATHER_US = 3_000


class ServerTarget:
    """A `Target`: one model. A batch is so many requests at the same moment, each by a thread of its own.

    `settle_s`: the pause that lets it save what it has to save. `bare`: nothing but the requests: queueing is not asked
    for, and there is no pause.
    """

    def __init__(
        self,
        address: str,
        model: str,
        threads: int = 1,
        metrics_url: str = "",
        settle_s: float = SETTLE_S,
        bare: bool = False,
    ) -> None:
        self._bare, self._settle_s = bare, settle_s
        self._told, self._lock = 0, threading.Lock()
        self._model, self._metrics_url = model, metrics_url
        self._client = RankingClient(address, model=model, timeout_s=PATIENCE_S)
        self._statistics = triton.InferenceServerClient(address.removeprefix("grpc://"))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"visits-{model}")

    def __enter__(self) -> ServerTarget:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.shutdown(wait=kind is None, cancel_futures=True)
        self._client.close()
        self._statistics.close()

    def serve(self, visits: Sequence[Visit], top_k: int | None = None) -> Served:
        """Queueing is Triton's mean over the requests that it answered meanwhile."""
        requests = [(visit, Events(visit.items, visit.actions), top_k) for visit in visits]
        before = self._queued()
        if len(requests) == 1:
            found = [self._ask(*requests[0])]
        else:
            found = list(self._threads.map(lambda request: self._ask(*request), requests))
        count, seconds = (now - then for now, then in zip(self._queued(), before, strict=True))
        queue_s = seconds / count if count else 0.0
        return Served(tuple(answer for answer, _ in found), tuple(taken for _, taken in found), queue_s)

    def settle(self) -> None:
        if not self._bare:
            time.sleep(self._settle_s)

    def step_ms(self) -> dict[str, float]:
        """Milliseconds spent in each step since the model was loaded, by its own metrics.

        They are read once they hold every answer of this target, the model's only client: each of its history tokens is
        counted there. Raises `TargetFailed` where they do not within `PUBLISHED_S`.
        """
        deadline = time.monotonic() + PUBLISHED_S
        while True:
            found = scrape(self._metrics_url)
            counted = found.total("mtserve_history_tokens_total", self._model)
            if counted == self._told:
                seconds = found.by("mtserve_step_seconds_total", "step", self._model)
                return {name: 1e3 * seconds.get(name, 0.0) for name in STEPS}
            if time.monotonic() > deadline:
                raise TargetFailed(
                    f"{self._model}: {counted:,.0f} history tokens are on the metrics port after {PUBLISHED_S:g} s, "
                    f"and {self._told:,} were answered: does somebody else use this model?"
                )
            time.sleep(LOOK_EVERY_S)

    def _ask(self, visit: Visit, history: Events, top_k: int | None) -> tuple[Answer, float]:
        begin = time.perf_counter()
        try:
            ranking = self._client.rank(visit.user, history=history, candidates=visit.candidates, top_k=top_k)
        except MtserveError as error:
            return Answer.failed(f"{type(error).__name__}: {error}"), time.perf_counter() - begin
        taken = time.perf_counter() - begin
        cache = ranking.cache
        with self._lock:
            self._told += cache.device + cache.host + cache.recomputed + cache.new
        return Answer(ranking.scores, ranking.ranking, cache.device, cache.host, cache.recomputed), taken

    def _queued(self) -> tuple[int, float]:
        """Requests and their seconds in Triton's queue, since the model was loaded."""
        if self._bare:
            return 0, 0.0
        (found,) = self._statistics.get_inference_statistics(self._model).model_stats
        queue: Any = found.inference_stats.queue
        return int(queue.count), int(queue.ns) / 1e9


@contextmanager
def serving(
    weights: Path,
    models: Mapping[str, Mapping[str, str]],
    config: str = "cpu",
    batches: bool = False,
    idle_s: float = 0.0,
) -> Iterator[EmbeddedServer]:
    """One real server with the same weights under several names, each with its knobs, while the context lasts.

    The one named `NOTHING` does nothing. `batches`: requests that are sent together are to run together. `idle_s`: how
    long a client may keep a sequence open and send nothing, if not as shipped. Raises `ServerError`, `RepositoryError`.
    """
    with ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mtserve-perf-")))
        for name, knobs in models.items():
            folder = write_model(repository, name, weights, knobs, config)
            if name == NOTHING:
                do_nothing(folder)
            if batches:
                _set(folder / "config.pbtxt", "max_queue_delay_microseconds", GATHER_US)
            if idle_s:
                _set(folder / "config.pbtxt", "max_sequence_idle_microseconds", round(1e6 * idle_s))
        yield stack.enter_context(EmbeddedServer(repository=repository, exit_timeout=10))
    # A server that is being stopped takes Ctrl-C as "at once", and what comes after it would go on.
    interrupts.check()


def _set(path: Path, name: str, value: int) -> None:
    """Another number in a config.pbtxt."""
    text, count = re.subn(rf"\b{name}: \d+", f"{name}: {value}", path.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"{path} says {name} {count} times: nothing for {value} to stand for")
    path.write_text(text, encoding="utf-8")


@contextmanager
def targets(
    weights: Path,
    models: Mapping[str, Mapping[str, str]],
    config: str = "cpu",
    batch: int = 1,
    settle_s: float = SETTLE_S,
    bare: bool = False,
) -> Iterator[dict[str, ServerTarget]]:
    """As `serving`, with a target for each model; batches of up to `batch` requests."""
    with serving(weights, models, config, batch > 1) as server, ExitStack() as stack:
        yield {
            name: stack.enter_context(ServerTarget(server.grpc_url, name, batch, server.metrics_url, settle_s, bare))
            for name in models
        }
