"""The logs of KuaiRand-1K, Pure and 27K (log_standard_*.csv, log_random_*.csv), as events for `cut.py`.

A user is user_id + 1 (Triton takes sequence ID 0 for none), an item video_id + 1 (0 stays free for items a model does
not know), an action the bitmask of the feedback flags (`feedback.FLAGS`). Equal times of a user are ordered by item and
action: the result does not depend on the order of the files, or of the rows in them.
"""

from __future__ import annotations

import difflib
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from perf.datasets import BadRows, DatasetError
from perf.traces import csv_integers
from perf.traces.cut import EVENT
from perf.traces.feedback import FLAGS
from perf.traces.sorting import ExternalSort, Rows

# In the order of the official files; the others are not needed.
OFFICIAL_HEADER = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)
NEEDED = ("user_id", "video_id", "time_ms", *FLAGS)
PATTERNS = ("log_*.csv", "log_*.csv.gz")
# 2000 and 2100, in milliseconds: seconds or microseconds by mistake lie outside.
FIRST_MS, LAST_MS = 946_684_800_000, 4_102_444_800_000
GZIP_MAGIC = b"\x1f\x8b"
LONGEST_HEADER = 1 << 16
SORT_KEYS = ("time_ms", "user", "item", "action")


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths`, and the logs in the folders among them (or in their data/). Raises `DatasetError`."""
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            folders = (path, path / "data")
            inside = [file for folder in folders for pattern in PATTERNS for file in sorted(folder.glob(pattern))]
            if not inside:
                raise DatasetError(f"the folder {path} holds no log_*.csv or log_*.csv.gz, nor does its data/")
        elif path.is_file():
            inside = [path]
        else:
            raise DatasetError(f"there is no file or folder {path}: give KuaiRand's log_*.csv files or their folder")
        found.update((file.resolve(), file) for file in inside)
    return list(found.values())


def read(
    files: Sequence[Path], sort: ExternalSort, bad: BadRows, on_bytes: Callable[[int], object] = lambda count: None
) -> int:
    """Put all usable rows of the files into `sort` (`EVENT` by `SORT_KEYS`); the first one's time in Unix seconds.

    Bad rows go to `bad`. `on_bytes` is told how many more bytes of the files were read. Raises `DatasetError` where a
    file is none of these logs, cannot be opened, or where no usable row is left at all.
    """
    first_ms = LAST_MS
    for file in files:
        for rows in _events(file, bad, on_bytes):
            first_ms = min(first_ms, int(rows["time_ms"].min(initial=LAST_MS)))
            sort.add(rows)
    if not sort.rows:
        raise DatasetError(f"{', '.join(str(file) for file in files)}: not one usable row; {bad}")
    return first_ms // 1000


def _events(path: Path, bad: BadRows, on_bytes: Callable[[int], object]) -> Iterator[Rows]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    line, told = 1, 0
    with raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            header = _header(path, file.readline(LONGEST_HEADER))
            for chunk in csv_integers.read(file, header, NEEDED):
                yield _checked(chunk, path, bad)
                line = int(chunk.lines[-1]) if len(chunk.lines) else line
                on_bytes(raw.tell() - told)
                told = raw.tell()
        except (OSError, EOFError, zlib.error) as error:
            # What was read until here is good; the rest cannot be told apart from nothing.
            bad.add(line, f"the file's end missing or damaged ({error})", path.name)


def _header(path: Path, first: bytes) -> list[str]:
    names = [name.strip().lower() for name in first.decode("utf-8-sig", "replace").rstrip("\r\n").split(",")]
    missing = [name for name in NEEDED if name not in names]
    if not first:
        raise DatasetError(f"{path} is empty: its first line should be {OFFICIAL_HEADER}")
    if missing:
        others = [name for name in names if name not in OFFICIAL_HEADER.split(",")]
        nearest = {name: difflib.get_close_matches(name, others, n=1, cutoff=0.5) for name in missing}
        hints = [f"{name} (is {close[0]!r} meant to be that?)" if close else name for name, close in nearest.items()]
        raise DatasetError(
            f"{path}, line 1: the header lacks {', '.join(hints)}; it has {','.join(names)[:300]}; "
            f"KuaiRand's logs have {OFFICIAL_HEADER}"
        )
    return names


def _checked(chunk: csv_integers.Chunk, path: Path, bad: BadRows) -> Rows:
    for reason, lines in chunk.bad.items():
        bad.add_many(lines.tolist(), reason, path.name)
    column = dict(zip(NEEDED, chunk.values.T, strict=True))
    good = (column["time_ms"] >= FIRST_MS) & (column["time_ms"] < LAST_MS)
    bad.add_many(chunk.lines[~good].tolist(), "a time_ms outside the years 2000 to 2099", path.name)
    action = np.zeros(len(good), np.int32)
    for name, bit in FLAGS.items():
        flag = column[name] <= 1
        bad.add_many(chunk.lines[good & ~flag].tolist(), f"{name} neither 0 nor 1", path.name)
        good &= flag
        action += bit * (column[name] == 1).astype(np.int32)
    rows = np.empty(int(good.sum()), EVENT)
    rows["time_ms"], rows["user"] = column["time_ms"][good], column["user_id"][good] + 1
    rows["item"], rows["action"] = column["video_id"][good] + 1, action[good]
    return rows
