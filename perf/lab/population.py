"""Users to measure with: histories as long as the KuaiRand-like trace's, and visits in some order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from perf.lab.presets import Preset
from perf.traces.generator import requests
from perf.traces.shapes import Shape
from perf.visits import SyntheticUsers, Visit

# A trace of so many users has enough requests to draw lengths from.
TRACE_USERS = 20
TRACE_REQUESTS = 20_000


def trace_lengths(preset: Preset, count: int, seed: int) -> list[int]:
    """Histories of `count` requests of the KuaiRand-like trace, evenly over their distribution, in a random order.

    Evenly, so that a few users have the mean and the spread of many.
    """
    shape = Shape(users=TRACE_USERS)
    every = sorted(request.history_length for request in islice(requests(shape, seed), TRACE_REQUESTS))
    chosen = [every[int((i + 0.5) * len(every) / count)] for i in range(count)]
    most = preset.model.max_history - preset.new * 64
    lengths = [max(preset.new, min(most, int(length / preset.shorten))) for length in chosen]
    return [lengths[i] for i in np.random.default_rng(seed).permutation(count)]


class Population:
    """`users` with histories of the given lengths. `first` are the visits that bring them."""

    def __init__(self, preset: Preset, lengths: Sequence[int], new: int, candidates: int, seed: int) -> None:
        self._new, self._candidates = new, candidates
        self._people = SyntheticUsers(preset.model.items, preset.model.actions, seed)
        self._random = np.random.default_rng(seed + 1)
        self.users = list(range(1, len(lengths) + 1))
        self.first = [self._people.visit(user, length, 0) for user, length in zip(self.users, lengths, strict=True)]
        self.tokens = sum(lengths)

    def visit(self, user: int) -> Visit:
        return self._people.visit(user, self._new, self._candidates)

    def batches(self, count: int, size: int) -> list[list[Visit]]:
        """So many batches of different users, drawn at random: no locality beyond what chance gives."""
        chosen = [self._random.choice(self.users, min(size, len(self.users)), replace=False) for _ in range(count)]
        return [[self.visit(int(user)) for user in users] for users in chosen]
