"""Sort more rows than fit into memory: sorted runs on disk, then one merge."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]

ROWS_IN_MEMORY = 1_000_000
LEAST_RUN_ROWS = 256
# Sorted rows come out in smaller pieces than they were sorted in: who takes them needs memory as well.
PIECES = 16


class ExternalSort:
    """Rows of one structured dtype, sorted by several of its fields, the first one first; a context manager.

    At most `rows_in_memory` rows are held (and as many again while they are sorted), however the keys are distributed;
    the rest lies in a temporary folder in `folder`, which is there only when needed and removed on exit. Rows with
    equal keys come out in the order in which they went in.
    """

    def __init__(
        self, dtype: np.dtype[np.void], keys: Sequence[str], folder: Path | None, rows_in_memory: int = ROWS_IN_MEMORY
    ) -> None:
        self._dtype = dtype
        self._keys = tuple(keys)
        self._folder = folder
        self._rows_in_memory = rows_in_memory
        self._waiting: list[Rows] = []
        self._waiting_rows = 0
        self._runs: list[_Run] = []
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.rows = 0

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def add(self, rows: Rows) -> None:
        """Keeps the array until it is sorted. Raises OSError where the disk is full."""
        self.rows += len(rows)
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= self._rows_in_memory:
            self._spill()

    def sorted(self) -> Iterator[Rows]:
        """All rows in pieces; rows with the same first key are never in two pieces. Once, after the last `add`."""
        if not self._runs:
            yield from self._in_memory()
            return
        self._spill()
        runs = self._runs
        while runs:
            # What lies below all that is still unread can go.
            limit = min((run.bound for run in runs if run.more), default=None)
            rows = np.concatenate([run.take(limit) for run in runs])
            if len(rows):
                yield self._in_order(rows)
            runs = [run for run in runs if run.more or len(run.rows)]
            started = sum(run.started for run in runs)
            size = max(LEAST_RUN_ROWS, self._rows_in_memory // (PIECES * max(started, 1)))
            for run in runs:
                # Runs that begin later stay unread until their turn comes: files in time order make many of these.
                if run.more and (run.bound == limit or (run.started and len(run.rows) < size // 2)):
                    run.read(size)

    def _in_memory(self) -> Iterator[Rows]:
        rows = self._in_order(self._taken())
        key, start, piece = rows[self._keys[0]], 0, self._rows_in_memory // PIECES + 1
        while start < len(rows):
            last = min(start + piece, len(rows)) - 1
            stop = int(np.searchsorted(key, key[last], side="right"))
            yield rows[start:stop]
            start = stop

    def _spill(self) -> None:
        rows = self._in_order(self._taken())
        if not len(rows):
            return
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=".sort-", dir=self._folder)
        path = Path(self._temporary.name) / f"run-{len(self._runs):05}"
        self._runs.append(_Run(path, rows, self._keys[0]))

    def _taken(self) -> Rows:
        rows = np.concatenate(self._waiting) if self._waiting else np.empty(0, self._dtype)
        self._waiting, self._waiting_rows = [], 0
        return rows

    def _in_order(self, rows: Rows) -> Rows:
        """lexsort is stable, and many times faster than sorting structured rows."""
        columns: list[Any] = [rows[key] for key in reversed(self._keys)]
        ordered: Rows = rows[np.lexsort(columns)]
        return ordered


class _Run:
    """A sorted file, read in portions. `more`: there is some left; `bound`: nothing unread has a key below this."""

    def __init__(self, path: Path, rows: Rows, key: str) -> None:
        self._path, self._dtype, self._key = path, rows.dtype, key
        self._left, self._at = len(rows), 0
        self.bound: Any = rows[key][0]
        self.rows: Rows = rows[:0].copy()
        rows.tofile(path)

    @property
    def more(self) -> bool:
        return self._left > 0

    @property
    def started(self) -> bool:
        return self._at > 0

    def read(self, size: int) -> None:
        count = min(size, self._left)
        rows = np.fromfile(self._path, self._dtype, count, offset=self._at * self._dtype.itemsize)
        self._at += count
        self._left -= count
        self.rows = np.concatenate((self.rows, rows))
        self.bound = rows[self._key][-1]

    def take(self, limit: Any) -> Rows:
        """And forget the rows whose key is less than `limit`; all of them for None."""
        count = len(self.rows) if limit is None else int(np.searchsorted(self.rows[self._key], limit, side="left"))
        taken, self.rows = self.rows[:count], self.rows[count:]
        return taken
