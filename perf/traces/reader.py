"""Read a trace file: one block at a time, so that a trace of any length replays in constant memory."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from perf.traces.block import Block, Requests
from perf.traces.metadata import COLUMNS, METADATA_MEMBER, BlockEntry, Metadata, TraceError, block_member, from_json
from perf.traces.request import Arrival, Request
from perf.traces.statistics import HistoryBreak, Statistics, StatisticsBuilder

ZIP_MAGIC = b"PK\x03\x04"
HEAD_COLUMNS = ("time", "user", "history_length", "offsets")


class Trace:
    """An open trace file, a context manager. Every method that reads raises `TraceError` where the file is damaged.

    All of them may be called any number of times; `first` is the number of the request to begin with. `requests` and
    `chunks` do not touch the events and are several times faster than `arrivals` and `blocks`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip = _opened(path)
        try:
            self.metadata: Metadata = from_json(self._content(METADATA_MEMBER).decode("utf-8", "replace"))
        except TraceError as error:
            self._zip.close()
            raise TraceError(f"{path}: {error}") from error

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    def __len__(self) -> int:
        return self.metadata.requests

    def requests(self, first: int = 0) -> Iterator[Request]:
        """Who came, when and with how much."""
        for chunk in self.chunks(first):
            yield from chunk.each()

    def arrivals(self, first: int = 0) -> Iterator[Arrival]:
        """The requests with their events and candidates."""
        for block in self.blocks(first):
            yield from block.arrivals()

    def chunks(self, first: int = 0) -> Iterator[Requests]:
        """As `requests`, in columns."""
        for number, skipped in self._from(first):
            chunk = self._head(number)
            yield chunk.slice(skipped, len(chunk)) if skipped else chunk

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """As `arrivals`, in columns."""
        for number, skipped in self._from(first):
            block = self._block(number)
            yield block.slice(skipped, len(block)) if skipped else block

    def check(self) -> Statistics:
        """Read all of it and verify every rule of the format; the statistics, counted again."""
        builder = StatisticsBuilder()
        for number, block in enumerate(self.blocks()):
            try:
                builder.add(block.requests)
            except HistoryBreak as error:
                raise self._damaged(number, str(error)) from error
            for name, ids, bound in (
                ("items", block.items, self.metadata.items),
                ("candidates", block.candidates, self.metadata.items),
                ("actions", block.actions, self.metadata.actions),
            ):
                if len(ids) and not 0 <= ids.min() <= ids.max() < bound:
                    raise self._damaged(
                        number, f"{name} go from {ids.min()} to {ids.max()}, should be in 0 .. {bound - 1}"
                    )
        found = builder.statistics()
        if found.requests != self.metadata.statistics.requests or found.users != self.metadata.statistics.users:
            raise TraceError(f"{self.path}: {METADATA_MEMBER}'s statistics are not those of the requests: {found}")
        return found

    def _from(self, first: int) -> Iterator[tuple[int, int]]:
        """The blocks from this request on, and how many of their requests lie before it."""
        if not 0 <= first <= len(self):
            raise TraceError(f"{self.path} has {len(self)} requests: there is no request {first} to begin with")
        for number, entry in enumerate(self.metadata.blocks):
            if first < entry.requests:
                yield number, first
            first = max(0, first - entry.requests)

    def _head(self, number: int) -> Requests:
        head = Requests(*(self._column(number, name) for name in HEAD_COLUMNS))
        entry = self.metadata.blocks[number]
        problem = head.problem() or _disagreement(entry, head)
        if problem:
            raise self._damaged(number, problem)
        if number and head.time[0] < self.metadata.blocks[number - 1].last_time:
            raise self._damaged(number, "its first request's time lies before the last one's of the block before")
        return head

    def _block(self, number: int) -> Block:
        head = self._head(number)
        block = Block(head, *(self._column(number, name) for name in COLUMNS if name not in HEAD_COLUMNS))
        problem = block.problem()
        if problem:
            raise self._damaged(number, problem)
        return block

    def _column(self, number: int, name: str) -> npt.NDArray[Any]:
        member = block_member(number, name)
        try:
            buffer = io.BytesIO(self._content(member))
            array: npt.NDArray[Any] = np.load(buffer, allow_pickle=False)
        except (TraceError, ValueError) as error:
            raise TraceError(f"{self.path}: {member}: {error}") from error
        if array.dtype != COLUMNS[name] or array.ndim != 1:
            found = f"{array.ndim} dimensions of {array.dtype}"
            raise TraceError(f"{self.path}: {member} has {found}, should be one of {COLUMNS[name]}")
        return array

    def _content(self, member: str) -> bytes:
        """Raises `TraceError` without the file's name."""
        try:
            return self._zip.read(member)
        except KeyError as error:
            raise TraceError(f"the archive has no {member}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise TraceError(f"damaged: {error}") from error

    def _damaged(self, number: int, problem: str) -> TraceError:
        return TraceError(f"{self.path}: block {number}: {problem}")


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        with path.open("rb") as file:
            magic = file.read(len(ZIP_MAGIC))
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise TraceError(f"there is no file {path}") from error
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except zipfile.BadZipFile as error:
        if magic == ZIP_MAGIC:
            size = path.stat().st_size
            raise TraceError(
                f"{path} is cut short: {size:,} bytes without the index at the end; copy it again"
            ) from error
        raise TraceError(f"{path} is no trace: it begins with {magic!r}, should be made by perf.traces") from error


def _disagreement(entry: BlockEntry, head: Requests) -> str | None:
    found = (len(head), head.events, float(head.time[0]), float(head.time[-1])) if len(head) else (0, 0, 0.0, 0.0)
    indexed = (entry.requests, entry.events, entry.first_time, entry.last_time)
    return None if found == indexed else f"holds (requests, events, times) {found}, but the index says {indexed}"
