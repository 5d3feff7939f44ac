"""A plan's tables: every row meets every key it sees once, and the work is cut as evenly as it should be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtserve_backend.kernels.layout import Segment
from mtserve_backend.kernels.plan import ALIGN, PIECE_COLUMNS, RUN_COLUMNS, SUM_COLUMNS, Plan, Table
from mtserve_backend.kernels.tuning import Tuning
from tests.kernels.ragged import Ragged, batches

TUNING = Tuning(tile_rows=8, key_block=4, dim_step=16, warps=4, stages=2, run_rows=3, least_piece=8)


def tables(plan: Plan) -> tuple[Table, Table, Table]:
    def table(at: int, count: int, columns: int) -> Table:
        return plan.packed[at : at + count * columns].reshape(count, columns)

    return (
        table(plan.runs_at, plan.runs, RUN_COLUMNS),
        table(plan.pieces_at, plan.pieces, PIECE_COLUMNS),
        table(plan.sums_at, plan.sums, SUM_COLUMNS),
    )


def plan_of(ragged: Ragged, programs: int) -> tuple[Plan, list[np.ndarray]]:
    pages = [
        100 * number + np.arange(-(-segment.length // ragged.page_tokens))
        for number, segment in enumerate(ragged.segments)
    ]
    return Plan.of(ragged.segments, pages, ragged.heads, TUNING, programs), pages


def seen(ragged: Ragged, pages: list[np.ndarray]) -> Counter[tuple[int, int, int]]:
    """(row, page, offset) of every key that a row sees."""
    found: Counter[tuple[int, int, int]] = Counter()
    for segment, own in zip(ragged.segments, pages, strict=True):
        for row in range(segment.rows):
            limit = segment.cached + row + 1 if row < segment.new else segment.visible
            for position in range(limit):
                page, offset = divmod(position, ragged.page_tokens)
                found[segment.first_row + row, int(own[page]), offset] += 1
    return found


ragged_batches = batches(longest=40, widest=1, page_tokens=(1, 3, 8))


@given(ragged_batches, st.integers(1, 100))
def test_every_row_meets_every_key_it_sees_once(ragged: Ragged, programs: int) -> None:
    plan, pages = plan_of(ragged, programs)
    met: Counter[tuple[int, int, int]] = Counter()
    selves: Counter[int] = Counter()
    for first_row, rows, new_rows, first_limit, visible, pages_at, begin, full_end, end, _, *_ in tables(plan)[1]:
        for row in range(rows):
            limit = first_limit + row if row < new_rows else visible
            assert full_end == begin or full_end <= min(limit, end), "keys that are not masked are seen by all rows"
            if row >= new_rows and begin == 0:
                selves[int(first_row + row)] += 1
            for position in range(begin, min(end, limit)):
                page, offset = divmod(position, ragged.page_tokens)
                met[int(first_row + row), int(plan.packed[pages_at + page]), int(offset)] += 1
    assert met == seen(ragged, pages)
    targets = {s.first_row + s.new + row for s in ragged.segments for row in range(s.targets)}
    assert selves == Counter(targets), "each target sees itself once"


@given(ragged_batches, st.integers(1, 100))
def test_every_new_row_is_appended_to_its_slot_once(ragged: Ragged, programs: int) -> None:
    plan, pages = plan_of(ragged, programs)
    slots: dict[int, tuple[int, int]] = {}
    for first_row, rows, position, pages_at in tables(plan)[0]:
        assert 0 < rows <= TUNING.run_rows
        for row in range(rows):
            page, offset = divmod(int(position + row), ragged.page_tokens)
            assert int(first_row + row) not in slots
            slots[int(first_row + row)] = (int(plan.packed[pages_at + page]), offset)
    expected = {}
    for segment, own in zip(ragged.segments, pages, strict=True):
        for row in range(segment.new):
            page, offset = divmod(segment.cached + row, ragged.page_tokens)
            expected[segment.first_row + row] = (int(own[page]), offset)
    assert slots == expected


@given(ragged_batches, st.integers(1, 100))
def test_a_tiles_pieces_are_added_up_or_it_is_one_piece(ragged: Ragged, programs: int) -> None:
    plan, _ = plan_of(ragged, programs)
    _, pieces, sums = tables(plan)
    slots_of: dict[int, list[int]] = {}
    rows_of: dict[int, int] = {}
    for piece in pieces:
        slots_of.setdefault(int(piece[0]), []).append(int(piece[9]))
        rows_of[int(piece[0])] = int(piece[1])
    added = {int(first_row): range(first_slot, first_slot + count) for first_row, _, first_slot, count in sums}
    for first_row, slots in slots_of.items():
        assert sorted(slots) == list(added.pop(first_row, [-1]))
    assert not added
    assert all(rows_of[int(first_row)] == rows for first_row, rows, _, _ in sums)
    used = [slot for slots in slots_of.values() for slot in slots if slot >= 0]
    assert sorted(used) == list(range(plan.slots))


@given(ragged_batches, st.integers(1, 100))
def test_the_longest_pieces_come_first_and_tables_are_aligned(ragged: Ragged, programs: int) -> None:
    plan, _ = plan_of(ragged, programs)
    lengths = tables(plan)[1][:, 8] - tables(plan)[1][:, 6]
    assert (np.diff(lengths) <= 0).all()
    assert plan.packed.dtype == np.int32
    assert all(at % ALIGN == 0 for at in (plan.runs_at, plan.pieces_at, plan.sums_at))


@pytest.mark.parametrize(
    ("segments", "pieces", "cut"),
    [
        # 64 rows over 6,400 keys would be four programs: they are cut for 132 processors.
        ([Segment(0, 6400, 32, 32, 6432)], 34, 1),
        # Eight such requests: four or five pieces each.
        ([Segment(64 * i, 6400, 32, 32, 6432) for i in range(8)], 40, 8),
        # A recompute of 8,192 rows fills the GPU as it is.
        ([Segment(0, 0, 8192, 0, 0)], 128, 0),
        # Short histories are not worth it.
        ([Segment(0, 100, 10, 10, 110)], 1, 0),
    ],
)
def test_the_work_is_cut_where_processors_would_be_idle(segments: list[Segment], pieces: int, cut: int) -> None:
    tuning = Tuning(tile_rows=64, key_block=64, dim_step=128, warps=4, stages=3)
    pages = [np.arange(-(-segment.length // 32)) for segment in segments]
    plan = Plan.of(segments, pages, 4, tuning, 132)
    assert (plan.pieces, plan.sums) == (pieces, cut)
