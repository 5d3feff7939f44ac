"""The engine's thread: an inbox in front of it, upkeep when there is nothing to do, a bounded end."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from mtserve_backend.collector import Collector
from mtserve_backend.engine import Engine
from mtserve_backend.ranking import Code, Outcome, RankRequest, RequestError
from mtserve_backend.transfer.streams import WaitTimeout

log = logging.getLogger(__name__)

# After a batch the thread that sends the answers has Python to itself for so long, or until the next batch is there.
ANSWERS_FIRST_S = 0.001
# While transfers are under way their completions are looked for this often; otherwise the thread sleeps.
BUSY_UPKEEP_S = 0.005
IDLE_UPKEEP_S = 1.0

Batch = tuple[Sequence[RankRequest], "Future[list[Outcome]]"]


class RankingService:
    """`rank` may be called by any thread; the engine is touched by one."""

    def __init__(self, engine: Engine, request_timeout_s: float, look: Callable[[], None] = lambda: None) -> None:
        """`look` is called on the engine's thread between batches and when it is idle."""
        self.engine = engine
        self._look = look
        self._timeout_s = request_timeout_s
        self._inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._closed = False
        self._collector = Collector()
        self._answered = False  # a batch, since the last upkeep
        self._thread = threading.Thread(target=self._run, name="mtserve-engine", daemon=True)
        self._thread.start()

    def rank(self, requests: Sequence[RankRequest]) -> list[Outcome]:
        """Answer a batch; outcome i belongs to request i. Past the deadline every request is UNAVAILABLE."""
        if self._closed or not self._thread.is_alive():
            return self._unavailable(requests, "the engine is not running")
        future: Future[list[Outcome]] = Future()
        self._inbox.put((requests, future))
        try:
            return future.result(self._timeout_s)
        except FutureTimeout:
            future.cancel()
            return self._unavailable(requests, f"the engine did not answer within {self._timeout_s:g} s")

    @property
    def ready(self) -> bool:
        """Whether requests are computed: the engine's thread is there, and the stream that computes."""
        return not self._closed and self._thread.is_alive() and self.engine.compute.stream.broken is None

    def close(self, timeout_s: float) -> None:
        """Finish what was accepted, stop the streams. Logs what does not stop within `timeout_s`, and returns."""
        self._closed = True
        self._inbox.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.error("the engine was still at work after %g s and is left behind", timeout_s)
            return
        try:
            self.engine.close(timeout_s)
        except WaitTimeout as error:
            log.error("%s; it is left behind", error)

    def _run(self) -> None:
        try:
            while self._serve_next():
                pass
        except BaseException:
            log.exception("the engine failed; it takes no more requests")
        finally:
            self._closed = True
            self._refuse_waiting()

    def _serve_next(self) -> bool:
        """A batch, or upkeep if none comes; False if the service is to end."""
        try:
            batch = self._inbox.get(timeout=self._patience_s())
        except queue.Empty:
            self._upkeep()
            return True
        if batch is None:
            return False
        requests, future = batch
        if not future.set_running_or_notify_cancel():
            return True
        try:
            if self._answered:
                self._upkeep()  # before the batch evicts those whose tails are to be saved
            outcomes = self.engine.serve(requests)
        except BaseException as error:
            future.set_result([RequestError(Code.INTERNAL, f"the engine failed: {error}") for _ in requests])
            raise
        self._answered = True
        future.set_result(outcomes)
        return True

    def _patience_s(self) -> float:
        """How long to wait for the next batch before there is other work."""
        if self._answered:
            return ANSWERS_FIRST_S
        return BUSY_UPKEEP_S if self.engine.manager.tasks else IDLE_UPKEEP_S

    def _upkeep(self) -> None:
        """What no request should wait for."""
        self._answered = False
        self.engine.idle()
        self._collector.between_batches()
        self._look()

    def _refuse_waiting(self) -> None:
        while not self._inbox.empty():
            batch = self._inbox.get()
            if batch is not None and batch[1].set_running_or_notify_cancel():
                batch[1].set_result(self._unavailable(batch[0], "the engine is not running"))

    @staticmethod
    def _unavailable(requests: Sequence[RankRequest], why: str) -> list[Outcome]:
        return [RequestError(Code.UNAVAILABLE, f"{why}; it is safe to send the request again") for _ in requests]
