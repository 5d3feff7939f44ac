"""A digest of a history's beginning, by which a delta's sender and this server learn whether they mean the same one.

It is a sum over positions, so whoever knows it for one position knows it for another by the tokens in between: a client
takes away what it sends, a server what it compares. 64 bits tell histories apart that differ by accident; who wants to
be taken for another can as well send that other's history. Defined in docs/protocol.md; clients compute the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BITS = 64
MASK = 2**BITS - 1
HEX_DIGITS = BITS // 4

_ITEM, _ACTION, _POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def digest(start: int, items: npt.NDArray[np.int64], actions: npt.NDArray[np.int32]) -> int:
    """Of tokens at positions `start ...`: items and actions `[n]`. Digests of neighbours add up, modulo 2^64."""
    if not len(items):
        return 0
    mixed = np.arange(start, start + len(items), dtype=np.uint64)
    mixed *= _POSITION
    mixed += items.view(np.uint64) * _ITEM
    mixed += actions.astype(np.int64).view(np.uint64) * _ACTION
    # The finalizer of splitmix64, by which neighbouring values become unrelated ones.
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))
