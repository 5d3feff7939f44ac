"""KuaiRand's feedback flags as one action: a bitmask, one bit a flag."""

from __future__ import annotations

import numpy as np

from perf.traces.request import Actions

# The bit's value, and how often the generator sets it. The frequencies are chosen, not published.
FLAGS = {
    "is_click": 1,
    "is_like": 2,
    "is_follow": 4,
    "is_comment": 8,
    "is_forward": 16,
    "is_hate": 32,
    "long_view": 64,
    "is_profile_enter": 128,
}
ACTIONS = 256
FREQUENCIES = {
    "is_click": 0.4,
    "is_like": 0.02,
    "is_follow": 0.002,
    "is_comment": 0.003,
    "is_forward": 0.001,
    "is_hate": 0.0005,
    "long_view": 0.25,
    "is_profile_enter": 0.01,
}


def draw(count: int, rng: np.random.Generator) -> Actions:
    """Made-up actions: every flag by itself, as often as `FREQUENCIES` says."""
    actions = np.zeros(count, np.int32)
    for name, bit in FLAGS.items():
        actions += bit * (rng.random(count, np.float32) < FREQUENCIES[name]).astype(np.int32)
    return actions
