"""Sorting on disk gives what sorting in memory gives, whatever the keys look like."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.traces import sorting
from perf.traces.sorting import ExternalSort, Rows

ROW = np.dtype([("key", np.int64), ("second", np.int64), ("arrival", np.int64)])


def rows_of(keys: list[tuple[int, int]]) -> Rows:
    rows = np.empty(len(keys), ROW)
    for index, (key, second) in enumerate(keys):
        rows[index] = (key, second, index)
    return rows


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=120),
    st.integers(1, 40),
    st.integers(1, 50),
    st.booleans(),
)
def test_pieces_are_in_order_and_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[int, int]], portion: int, memory: int, in_order: bool
) -> None:
    rows = rows_of(sorted(keys) if in_order else keys)
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "LEAST_RUN_ROWS", 2)
        with ExternalSort(ROW, ("key", "second"), folder, rows_in_memory=memory) as sort:
            for start in range(0, len(rows), portion):
                sort.add(rows[start : start + portion])
            pieces = list(sort.sorted())
    found = [row for piece in pieces for row in piece.tolist()]
    assert found == sorted(rows.tolist()), "equal keys keep the order in which they came"
    ends = [(int(piece["key"][0]), int(piece["key"][-1])) for piece in pieces]
    assert all(before[1] < after[0] for before, after in pairwise(ends)), "no tie is torn"


def test_little_needs_no_disk_and_what_was_there_is_removed(tmp_path: Path) -> None:
    with ExternalSort(ROW, ("key",), tmp_path, rows_in_memory=100) as sort:
        sort.add(rows_of([(3, 0), (1, 0)]))
        assert [piece["key"].tolist() for piece in sort.sorted()] == [[1, 3]]
        assert not list(tmp_path.iterdir())
    with suppress(KeyboardInterrupt), ExternalSort(ROW, ("key",), tmp_path, rows_in_memory=2) as sort:
        sort.add(rows_of([(3, 0), (1, 0), (2, 0)]))
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_nothing_sorted_is_nothing() -> None:
    with ExternalSort(ROW, ("key",), None) as sort:
        assert list(sort.sorted()) == []


@pytest.mark.parametrize("in_order", [True, False])
def test_pieces_are_small_when_there_is_much(tmp_path: Path, in_order: bool) -> None:
    keys = np.arange(200_000)
    rows = np.zeros(len(keys), ROW)
    rows["key"] = keys if in_order else np.random.default_rng(0).permutation(keys)
    with ExternalSort(ROW, ("key",), tmp_path, rows_in_memory=20_000) as sort:
        for start in range(0, len(rows), 1_000):
            sort.add(rows[start : start + 1_000])
        sizes = [len(piece) for piece in sort.sorted()]
    assert sum(sizes) == len(rows)
    assert max(sizes) <= 20_000
    assert len(sizes) < 1_000, "nor so small that each costs more than its rows"
