"""How keys, values and a ragged batch lie in memory: what kernels, models and transfers agree on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PageNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KVShape:
    """Shape of one token's state: `layers * 2 * heads * head_dim` values."""

    layers: int
    heads: int
    head_dim: int

    @property
    def values_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.head_dim


@dataclass(frozen=True)
class Segment:
    """One request's rows: `new` history rows at positions `cached ...`, then `targets` rows.

    New row i attends to keys 0 .. cached + i. A target row attends to keys 0 .. visible - 1 and to itself; its own
    keys and values are never stored.
    """

    first_row: int
    cached: int
    new: int
    targets: int
    visible: int

    @property
    def rows(self) -> int:
        return self.new + self.targets

    @property
    def length(self) -> int:
        """History tokens whose keys exist once the new rows are appended."""
        return self.cached + self.new

    def part(self, start: int, stop: int, first_row: int) -> Segment:
        """Rows `start .. stop` of this segment (counted from its own first), placed at `first_row`."""
        new = min(stop, self.new) - min(start, self.new)
        return Segment(first_row, self.cached + min(start, self.new), new, stop - start - new, self.visible)
