"""What Python's cyclic garbage collector may look at: never what millions of users are made of."""

from __future__ import annotations

import gc
import time

FREEZE_EVERY_S = 10.0


class Collector:
    """Takes what has lived for a while out of the collector's sight, between batches.

    A full collection walks over every object there is: 16 s at ten million users (`python -m perf.metadata`), in the
    middle of some request. Users are freed by reference counts; nothing of them is ever a cycle once it is given up.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def between_batches(self) -> None:
        """Collect what is young, freeze what is left; at most every `FREEZE_EVERY_S`."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + FREEZE_EVERY_S
            gc.collect(1)
            gc.freeze()
