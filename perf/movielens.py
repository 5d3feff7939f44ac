"""MovieLens ratings as time-ordered histories: `ratings.csv` (ml-latest*), `ml-100k.inter` (RecBole), `u.data`.

Items become 1 .. I in the order of their own IDs (numbers as numbers), whatever the order of the file; 0 stays free for
items the model does not know. A rating becomes an action: 1 .. 5 stars, half stars rounded up; 0 means none.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perf.datasets import BadRows, DatasetError

OOV_ITEM = 0
ACTIONS = 6
RATINGS_FILES = ("ml-100k.inter", "u.data", "ratings.csv")
COLUMNS = ("user", "item", "rating", "timestamp")
# What each format calls the four columns.
HEADER_NAMES = {"userid": "user", "user_id": "user", "movieid": "item", "item_id": "item"}

Items = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]


@dataclass(frozen=True)
class History:
    """One user's interactions, oldest first; equal timestamps keep the file's order."""

    user: str
    items: Items
    actions: Actions
    timestamps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class MovieLens:
    """Histories of all users, ordered by user ID, and the dictionary of items: `item_ids[0]` is the unknown item."""

    source: Path
    histories: tuple[History, ...]
    item_ids: tuple[str, ...]
    titles: dict[int, str]
    bad_rows: BadRows

    @property
    def items(self) -> int:
        """Rows an embedding table needs: the items and the unknown one."""
        return len(self.item_ids)

    @property
    def interactions(self) -> int:
        return sum(len(history) for history in self.histories)

    def title(self, item: int) -> str:
        return self.titles.get(item, f"item {self.item_ids[item]}")


@dataclass(frozen=True)
class Split:
    """Leave-last-out of one history: train on `train`, choose by `validation`, report on `test` (positions)."""

    train: slice
    validation: int
    test: int


def leave_last_out(history: History) -> Split | None:
    """None for histories too short to give up two items and keep one."""
    n = len(history)
    return None if n < 3 else Split(slice(0, n - 2), n - 2, n - 1)


def load(path: Path) -> MovieLens:
    """Read a ratings file, or the folder that holds one. Raises `DatasetError`."""
    path = _ratings_file(path)
    bad = BadRows()
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = [row for line, fields in _fields(file, path) if (row := _parse(line, fields, bad)) is not None]
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    if not rows:
        raise DatasetError(f"{path} holds no usable rating: {bad}")
    item_ids = ("", *sorted({row.item for row in rows}, key=_id_order))
    dense = {item: index for index, item in enumerate(item_ids)}
    by_user: dict[str, list[_Row]] = {}
    for row in rows:
        by_user.setdefault(row.user, []).append(row)
    histories = tuple(_history(user, by_user[user], dense) for user in sorted(by_user, key=_id_order))
    titles = {dense[item]: title for item, title in _titles(path.parent) if item in dense}
    return MovieLens(path, histories, item_ids, titles, bad)


@dataclass(frozen=True)
class _Row:
    user: str
    item: str
    action: int
    timestamp: int


def _ratings_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise DatasetError(f"there is no file or folder {path}: give a MovieLens folder or one of {RATINGS_FILES}")
    for name in RATINGS_FILES:
        if (path / name).is_file():
            return path / name
    raise DatasetError(f"the folder {path} holds none of {RATINGS_FILES}")


def _fields(file: Iterator[str], path: Path) -> Iterator[tuple[int, dict[str, str] | None]]:
    """(line number, the four columns by name, or None where the row is torn)."""
    first = next(file, "").lstrip("\ufeff").rstrip("\r\n")
    delimiter = "\t" if "\t" in first else ","
    header = [_column(name) for name in first.split(delimiter)]
    rows = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL)
    if set(COLUMNS) <= set(header):
        start = 2
    elif delimiter == "\t" and len(header) == 4 and header[3].isdigit():
        header, start = list(COLUMNS), 1
        yield start, dict(zip(COLUMNS, first.split(delimiter), strict=True))
        start = 2
    else:
        raise DatasetError(
            f"{path} is not a MovieLens ratings file: its first line is {first[:80]!r}, and should be "
            "'userId,movieId,rating,timestamp', RecBole's 'user_id:token ...' or four tab-separated numbers"
        )
    for line, values in enumerate(rows, start):
        if values:
            yield line, dict(zip(header, values, strict=True)) if len(values) == len(header) else None


def _column(name: str) -> str:
    plain = name.split(":")[0].strip().lower()
    return HEADER_NAMES.get(plain, plain)


def _parse(line: int, fields: dict[str, str] | None, bad: BadRows) -> _Row | None:
    if fields is None:
        bad.add(line, "the wrong number of columns")
        return None
    user, item = fields["user"].strip(), fields["item"].strip()
    if not user or not item:
        bad.add(line, "no user or item")
        return None
    rating, timestamp = _number(fields["rating"]), _number(fields["timestamp"])
    if not 0 < rating < ACTIONS - 1 + 1e-9:
        bad.add(line, "a rating outside 0.5 .. 5")
        return None
    if not 0 <= timestamp < 2**62:
        bad.add(line, "a bad timestamp")
        return None
    return _Row(user, item, math.ceil(rating), int(timestamp))


def _number(text: str) -> float:
    """NaN where it is none: NaN fails every comparison."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _id_order(identifier: str) -> tuple[int, int, str]:
    """Numbers first and by value, then the rest by spelling."""
    number = identifier.isascii() and identifier.isdigit()
    return (0, int(identifier), identifier) if number else (1, 0, identifier)


def _history(user: str, rows: Sequence[_Row], dense: dict[str, int]) -> History:
    ordered = sorted(rows, key=lambda row: row.timestamp)
    return History(
        user,
        np.array([dense[row.item] for row in ordered], dtype=np.int64),
        np.array([row.action for row in ordered], dtype=np.int32),
        np.array([row.timestamp for row in ordered], dtype=np.int64),
    )


def _titles(folder: Path) -> Iterator[tuple[str, str]]:
    """(item ID, title) from whichever list of titles lies beside the ratings; nothing where there is none."""
    for name, reader in _TITLE_READERS.items():
        if (folder / name).is_file():
            yield from reader(folder / name)
            return


def _movies_csv(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            if row.get("movieId") and row.get("title"):
                yield row["movieId"], row["title"]


def _recbole_item(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)
        for line in file:
            values = line.rstrip("\n").split("\t")
            if len(values) >= 3 and values[1]:
                yield values[0], f"{values[1]} ({values[2]})" if values[2] else values[1]


def _u_item(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(encoding="latin-1") as file:
        for line in file:
            values = line.split("|")
            if len(values) >= 2 and values[1]:
                yield values[0], values[1]


_TITLE_READERS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "ml-100k.item": _recbole_item,
    "u.item": _u_item,
    "movies.csv": _movies_csv,
}
