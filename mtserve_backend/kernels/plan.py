"""A ragged batch as the GPU kernels read it: int32 tables, made once per batch on the host and uploaded in one copy.

A tile is up to `tile_rows` consecutive rows of one segment; a piece is a tile and a range of its keys, and is what one
program computes for one head. A tile is cut into pieces where whole tiles would leave processors idle: the typical
request is one tile over thousands of keys. The sums of a cut tile's pieces are added by a second kernel, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtserve_backend.kernels.layout import PageNumbers, Segment
from mtserve_backend.kernels.tuning import Tuning

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]

# Columns of the tables; the kernels read them by these numbers.
PIECE_COLUMNS = 12  # first_row, rows, new_rows, first_limit, visible, pages_at, begin, full_end, end, slot; 2 unused
RUN_COLUMNS = 4  # first_row, rows, position, pages_at
SUM_COLUMNS = 4  # first_row, rows, first_slot, slots
# Tables start at multiples of 16 bytes, whatever is before them: one specialisation of the kernels serves all.
ALIGN = 4


@dataclass(frozen=True)
class Plan:
    """The tables of a batch, one after the other in `packed`, int32, each at a multiple of 16 bytes.

    `pages`: the segments' page numbers, one segment's after the other's.
    `runs` `[n, 4]`: new rows to append: first_row, rows, position of the first, where its segment starts in `pages`.
    `pieces` `[n, 12]`, most keys first: first_row and rows of the tile; how many of them are new history; the keys seen
    by the first of those; the keys seen by a target; where the segment starts in `pages`; the keys of the piece (from
    `begin`; all rows see those before `full_end`; to `end`); `slot`, where its sums go, or -1: it is the whole tile.
    `sums` `[n, 4]`: of each tile that was cut first_row, rows, its first slot, its slots. In all there are `slots`.
    """

    packed: Table
    runs_at: int
    runs: int
    pieces_at: int
    pieces: int
    sums_at: int
    sums: int
    slots: int

    @classmethod
    def of(
        cls, segments: Sequence[Segment], pages: Sequence[PageNumbers], heads: int, tuning: Tuning, programs: int
    ) -> Plan:
        """`programs` is how many programs keep the GPU busy."""
        fields = np.array(
            [(s.first_row, s.cached, s.new, s.targets, s.visible) for s in segments], dtype=np.int64
        ).reshape(-1, 5)
        counts = np.array([len(numbers) for numbers in pages], dtype=np.int64)
        pages_at = np.cumsum(counts) - counts
        pieces, sums, slots = _pieces(fields, pages_at, tuning, max(1, programs // heads))
        runs = _runs(fields, pages_at, tuning.run_rows)
        tables = [np.concatenate([*pages, np.zeros(0, dtype=np.int64)]), runs, pieces, sums]
        starts = np.cumsum([0] + [-(-table.size // ALIGN) * ALIGN for table in tables])
        packed = np.zeros(starts[-1], dtype=np.int32)
        for start, table in zip(starts, tables, strict=False):
            packed[start : start + table.size] = table.reshape(-1)
        return cls(packed, int(starts[1]), len(runs), int(starts[2]), len(pieces), int(starts[3]), len(sums), slots)


def _runs(fields: Ints, pages_at: Ints, run_rows: int) -> Ints:
    first_row, cached, new = fields[:, 0], fields[:, 1], fields[:, 2]
    segment, start = _cut(new, np.full(len(new), run_rows))
    rows = np.minimum(run_rows, new[segment] - start)
    return np.stack((first_row[segment] + start, rows, cached[segment] + start, pages_at[segment]), axis=1)


def _pieces(fields: Ints, pages_at: Ints, tuning: Tuning, programs_per_head: int) -> tuple[Ints, Ints, int]:
    first_row, cached, new, targets, visible = fields.T
    segment, start = _cut(new + targets, np.full(len(new), tuning.tile_rows))
    rows = np.minimum(tuning.tile_rows, (new + targets)[segment] - start)
    new_rows = np.clip(new[segment] - start, 0, rows)
    first_limit = cached[segment] + start + 1
    seen = visible[segment]
    has_new, has_targets = new_rows > 0, new_rows < rows
    # The keys that some row of the tile sees, and those that every row sees.
    most = np.maximum(np.where(has_new, first_limit + new_rows - 1, 0), np.where(has_targets, seen, 0))
    least = np.minimum(np.where(has_new, first_limit, most), np.where(has_targets, seen, most))

    block = tuning.key_block
    fair = int(most.sum()) / programs_per_head
    budget = max(tuning.least_piece, round(fair / block) * block)
    count = np.maximum(1, -(-most // budget))
    step = np.maximum(block, -(-most // (count * block)) * block)
    count = np.maximum(1, -(-most // step))
    tile, begin = _cut(np.maximum(most, 1), step)
    end = np.minimum(begin + step[tile], most[tile])
    whole = count == 1
    slots = np.where(whole, 0, count)
    slots_at = np.cumsum(slots) - slots
    slot = np.where(whole[tile], -1, slots_at[tile] + begin // step[tile])
    pieces = np.zeros((len(tile), PIECE_COLUMNS), dtype=np.int64)
    columns = (
        (first_row[segment] + start)[tile], rows[tile], new_rows[tile], first_limit[tile], seen[tile],
        pages_at[segment][tile], begin, np.clip(least[tile], begin, end), end, slot,
    )  # fmt: skip
    pieces[:, : len(columns)] = np.stack(columns, axis=1)
    # The longest first: what is left for the end is short.
    order = np.argsort(begin - end, kind="stable")
    cut = ~whole
    sums = np.stack(((first_row[segment] + start)[cut], rows[cut], slots_at[cut], count[cut]), axis=1)
    return pieces[order], sums, int(slots.sum())


def _cut(lengths: Ints, steps: Ints) -> tuple[Ints, Ints]:
    """Cut `lengths[i]` into steps of `steps[i]`: for each step, which length it is of, and where in it it starts."""
    counts = -(-lengths // steps)
    index = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return index, within * steps[index]
