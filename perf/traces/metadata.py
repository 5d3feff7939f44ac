"""What a trace file says of itself: its member `trace.json`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from perf.traces.statistics import Statistics

FORMAT = "mtserve-trace"
VERSION = 1
METADATA_MEMBER = "trace.json"
# The members of a block, and what they must hold.
COLUMNS = {
    "time": "float64",
    "user": "int64",
    "history_length": "int64",
    "offsets": "int64",
    "items": "int64",
    "actions": "int32",
    "timestamps": "int64",
    "candidate_offsets": "int64",
    "candidates": "int64",
}


class TraceError(ValueError):
    """A trace cannot be read, written or made; the message names the file and says what would be right."""


@dataclass(frozen=True)
class Source:
    """Where a trace comes from. `settings` are what one needs to make it again, `start_unix_s` is its time 0.

    `items`, `actions`: what IDs can be below, where the source knows more than those that occur.
    """

    name: str
    settings: dict[str, Any]
    start_unix_s: int
    interval_s: float | None = None
    seed: int | None = None
    items: int = 0
    actions: int = 0


class BlockEntry(NamedTuple):
    """One block in the index: what it holds, and the times (seconds since the trace's start) of its ends."""

    requests: int
    events: int
    candidates: int
    first_time: float
    last_time: float


@dataclass(frozen=True)
class Metadata:
    """`items` and `actions`: all IDs are below these."""

    source: Source
    requests: int
    events: int
    candidates: int
    items: int
    actions: int
    statistics: Statistics
    blocks: tuple[BlockEntry, ...]

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return self.blocks[-1].last_time - self.blocks[0].first_time


def block_member(number: int, column: str) -> str:
    return f"blocks/{number:06}/{column}.npy"


def to_json(metadata: Metadata) -> str:
    """NaN, which JSON does not have, becomes null."""
    content = {"format": FORMAT, "version": VERSION} | asdict(metadata)
    content["statistics"] = finite(asdict(metadata.statistics))
    return json.dumps(content)


def from_json(text: str) -> Metadata:
    """Raises `TraceError` without the file's name."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{METADATA_MEMBER} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TraceError(f'{METADATA_MEMBER} does not say "format": "{FORMAT}": this is no trace')
    if content.get("version") != VERSION:
        raise TraceError(f"format version {content.get('version')}; this reader knows version {VERSION}: make it again")
    try:
        known = content["statistics"].items()
        statistics: dict[str, Any] = {name: math.nan if value is None else value for name, value in known}
        plain = {field.name: content[field.name] for field in fields(Metadata)}
        plain["source"] = Source(**content["source"])
        plain["statistics"] = Statistics(**statistics)
        plain["blocks"] = tuple(BlockEntry(*entry) for entry in content["blocks"])
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{METADATA_MEMBER} is incomplete: {error!r}") from error
    metadata = Metadata(**plain)
    if not metadata.blocks:
        raise TraceError(f"{METADATA_MEMBER} lists no blocks")
    for name in ("requests", "events", "candidates"):
        total = sum(getattr(entry, name) for entry in metadata.blocks)
        if total != getattr(metadata, name):
            raise TraceError(f"{METADATA_MEMBER} says {getattr(metadata, name)} {name}, but its blocks have {total}")
    return metadata


def finite(values: dict[str, float]) -> dict[str, float | None]:
    """For JSON: NaN becomes None."""
    return {name: None if math.isnan(value) else value for name, value in values.items()}
