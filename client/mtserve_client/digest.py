"""The digest of a history's beginning, docs/protocol.md: by it a server knows that a delta continues what it holds."""

from __future__ import annotations

import numpy as np

from mtserve_client.events import Events

MASK = 2**64 - 1

_ITEM, _ACTION, _POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def digest(start: int, events: Events) -> int:
    """Of events at positions `start ...`. Digests of neighbours add up, modulo 2^64."""
    if not len(events):
        return 0
    mixed = np.arange(start, start + len(events), dtype=np.uint64)
    mixed *= _POSITION
    mixed += events.items.view(np.uint64) * _ITEM
    mixed += events.actions.astype(np.int64).view(np.uint64) * _ACTION
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))
