"""Bad weather for transfers: every stage of every one may be late, half done, or fail, by a seed.

The stages are the copies in `kernels.copies`, which the transfer workers call and which know nothing of it. A stage is
hit before it begins, in the middle (half of its bytes are there) or after its end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from mtserve_backend.kernels import copies

# What runs on which stream; `copy` is the smallest piece of all of them. Zeroing runs on the compute stream, unguarded:
# it cannot fail, but it can be slow.
FALLIBLE = ("copy", "copy_pages", "scatter_pages", "gather_pages", "zero_all")
STAGES = (*FALLIBLE, "zero")
DELAYS_S = (0.0, 0.001, 0.004, 0.02)


class Lightning(RuntimeError):
    """What a stage hit by a failure raises."""


@dataclass(frozen=True)
class Weather:
    """Probabilities per stage call. `slow` names streams whose every stage is late."""

    seed: int
    delay: float
    failure: float
    slow: frozenset[str]

    @contextmanager
    def over(self, stall: Callable[[float], None] = time.sleep) -> Iterator[list[str]]:
        """Everything that moves moves through this; gives the list of what was hit. `stall` makes a stage late."""
        originals = {name: getattr(copies, name) for name in STAGES}
        rng, gate, hits = random.Random(self.seed), threading.Lock(), []

        def dice(name: str) -> tuple[float, str | None]:
            """How late, and where it fails."""
            stream = threading.current_thread().name.removeprefix("mtserve-")
            with gate:  # one sequence for all threads: what happens is random, how often is not
                late = rng.choice(DELAYS_S) if rng.random() < self.delay else 0.0
                fails = name in FALLIBLE and rng.random() < self.failure
                where = rng.choice(("before", "during", "after")) if fails else None
                if where:
                    hits.append(f"{name} on {stream}: {where}")
            return max(late, 0.004 if stream in self.slow else 0.0), where

        def stage(name: str, work: Callable[..., None]) -> Callable[..., None]:
            def run(*arguments: object) -> None:
                late, where = dice(name)
                stall(late)
                if where == "before":
                    raise Lightning(f"before {name}")
                if where == "during" and name == "copy":
                    _half(work, *arguments)
                    raise Lightning(f"in the middle of {name}")
                work(*arguments)
                if where:
                    raise Lightning(f"after {name}")
                stall(late / 2)

            return run

        for name, work in originals.items():
            setattr(copies, name, stage(name, work))
        try:
            yield hits
        finally:
            for name, work in originals.items():
                setattr(copies, name, work)


def _half(copy: Callable[..., None], target: object, source: object) -> None:
    assert isinstance(target, torch.Tensor)
    assert isinstance(source, torch.Tensor)
    count = target.numel() // 2
    copy(target.view(-1)[:count], source.view(-1)[:count])
