"""Write a trace file: block by block, in constant memory, under its name only when it is complete."""

from __future__ import annotations

import io
import math
import os
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from perf.traces.block import BLOCK_EVENTS, BLOCK_REQUESTS, Block, joined
from perf.traces.metadata import (
    COLUMNS,
    METADATA_MEMBER,
    BlockEntry,
    Metadata,
    Source,
    TraceError,
    block_member,
    to_json,
)
from perf.traces.statistics import HistoryBreak, StatisticsBuilder

# The fastest level: random item IDs hardly shrink, lengths and times do at any level.
COMPRESSION_LEVEL = 1
# One fixed date in the archive: the same trace is the same bytes.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def check_writable(path: Path, overwrite: bool) -> None:
    """Before an hour's work rather than after it. Raises `TraceError`."""
    if path.is_dir() or (path.exists() and not overwrite):
        raise TraceError(f"{path} exists already: choose another name" + ("" if path.is_dir() else ", or use --force"))
    if not path.parent.is_dir():
        raise TraceError(f"there is no folder {path.parent} to write {path.name} into")


class TraceWriter:
    """A context manager; leaving it without an error puts the file under its name, with an error leaves nothing.

    Blocks may have any size: the file's are joined and cut to those of `block.py`. Raises `TraceError` for blocks that
    break the format's rules and for a trace without requests, OSError for what the disk refuses.
    """

    def __init__(self, path: Path, source: Source, overwrite: bool = False) -> None:
        check_writable(path, overwrite)
        self._path, self._source = path, source
        self._builder = StatisticsBuilder()
        self._entries: list[BlockEntry] = []
        self._waiting: list[Block] = []
        self._bounds = {"items": source.items, "actions": source.actions}
        self._metadata: Metadata | None = None

    def __enter__(self) -> TraceWriter:
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", suffix=".partial", dir=self._path.parent)
        os.close(handle)
        self._temporary = Path(name)
        self._zip = zipfile.ZipFile(
            self._temporary, "w", zipfile.ZIP_DEFLATED, allowZip64=True, compresslevel=COMPRESSION_LEVEL
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
            else:
                self._zip.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    @property
    def metadata(self) -> Metadata:
        """Of the finished trace; raises RuntimeError before it is one."""
        if self._metadata is None:
            raise RuntimeError(f"{self._path} is not finished: its metadata is known when the writer is left")
        return self._metadata

    def write(self, block: Block) -> None:
        """The next requests of the trace. They may be kept until there are enough for a block of the file."""
        self._must_be_none(block.problem())
        self._waiting.append(block)
        requests = sum(len(waiting) for waiting in self._waiting)
        events = sum(waiting.requests.events for waiting in self._waiting)
        if requests >= BLOCK_REQUESTS or events >= BLOCK_EVENTS:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        """Write all that waits but the last part, which may still grow."""
        whole = joined(self._waiting)
        parts = list(whole.requests.pieces())
        kept = parts if last else parts[:-1]
        for start, stop in kept:
            self._write_block(whole.slice(start, stop))
        self._waiting = [] if last else [whole.slice(*part) for part in parts[-1:]]

    def _write_block(self, block: Block) -> None:
        self._check(block)
        number, head = len(self._entries), block.requests
        values: dict[str, npt.NDArray[Any]] = {
            "time": head.time,
            "user": head.user,
            "history_length": head.history_length,
            "offsets": head.offsets,
            "items": block.items,
            "actions": block.actions,
            "timestamps": block.timestamps,
            "candidate_offsets": block.candidate_offsets,
            "candidates": block.candidates,
        }
        for column, dtype in COLUMNS.items():
            buffer = io.BytesIO()
            np.save(buffer, np.ascontiguousarray(values[column], dtype), allow_pickle=False)
            self._member(block_member(number, column), buffer.getvalue())
        for name, array in (("items", block.items), ("items", block.candidates), ("actions", block.actions)):
            self._bounds[name] = max(self._bounds[name], int(array.max(initial=-1)) + 1)
        times = float(head.time[0]), float(head.time[-1])
        self._entries.append(BlockEntry(len(block), head.events, len(block.candidates), *times))

    def _check(self, block: Block) -> None:
        """Statistics are gathered here, block by block of the file, so that they are the same whatever came in."""
        self._must_be_none(block.problem())
        last = self._entries[-1].last_time if self._entries else -math.inf
        if block.requests.time[0] < last:
            self._must_be_none(f"time {block.requests.time[0]} lies before {last}, the last one's of the block before")
        try:
            self._builder.add(block.requests)
        except HistoryBreak as error:
            self._must_be_none(str(error))

    def _must_be_none(self, problem: str | None) -> None:
        if problem is not None:
            raise TraceError(f"{self._path}: block {len(self._entries)} cannot be written: {problem}")

    def _finish(self) -> None:
        if self._waiting:
            self._flush(last=True)
        if not self._entries:
            self._zip.close()
            raise TraceError(f"{self._path}: a trace without a single request cannot be written")
        self._metadata = Metadata(
            self._source,
            requests=sum(entry.requests for entry in self._entries),
            events=sum(entry.events for entry in self._entries),
            candidates=sum(entry.candidates for entry in self._entries),
            items=self._bounds["items"],
            actions=self._bounds["actions"],
            statistics=self._builder.statistics(),
            blocks=tuple(self._entries),
        )
        self._member(METADATA_MEMBER, to_json(self._metadata).encode())
        self._zip.close()
        # mkstemp lets the owner only; the file gets what a plain open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        self._temporary.chmod(0o666 & ~mask)
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self._path)

    def _member(self, name: str, content: bytes) -> None:
        info = zipfile.ZipInfo(name, ZIP_DATE)
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, content, compresslevel=COMPRESSION_LEVEL)
