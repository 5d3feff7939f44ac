"""How a copying thread tells the engine's thread that a task is over."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass

from mtserve_backend.cache.records import OffloadTask, OnloadTask


@dataclass(frozen=True)
class Completion:
    """No byte of `task` moves any more; `failed` says whether those that did are worth anything."""

    task: OnloadTask | OffloadTask
    failed: bool


class CompletionQueue:
    """Written by any thread, drained by the engine's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Completion] = queue.SimpleQueue()

    def put(self, completion: Completion) -> None:
        self._queue.put(completion)

    def drain(self) -> Iterator[Completion]:
        """Those reported so far."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def wait(self, timeout_s: float) -> Completion | None:
        """The next one, or None if none comes in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
