"""Make trace files: generated, or from data sets. What the command line does, for Python; progress goes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tqdm import tqdm

from perf import movielens
from perf.datasets import BadRows
from perf.traces import generator, kuairand
from perf.traces import movielens as movielens_events
from perf.traces.block import Block
from perf.traces.cut import EVENT, Cutter, Rules
from perf.traces.events import START_UNIX_S, EventMaker
from perf.traces.feedback import ACTIONS, FLAGS
from perf.traces.metadata import Metadata, Source
from perf.traces.shapes import Shape
from perf.traces.sorting import ROWS_IN_MEMORY, ExternalSort, Rows
from perf.traces.writer import TraceWriter, check_writable


@dataclass(frozen=True)
class Made:
    """`beyond_longest`: events left out because their user's history was full."""

    path: Path
    metadata: Metadata
    bad_rows: BadRows = field(default_factory=BadRows)
    beyond_longest: int = 0


def generated(out: Path, name: str, shape: Shape, seed: int, candidates: int = 0, *, overwrite: bool = False) -> Made:
    """A made-up trace; the same arguments make the same bytes. `name` is for its metadata.

    Raises `TraceError`, OSError.
    """
    maker = EventMaker(shape, seed, candidates)
    settings = {"shape": asdict(shape), "candidates": candidates}
    source = Source(f"generated {name}", settings, START_UNIX_S, shape.segment_s, seed, shape.items + 1, ACTIONS)
    chunks = generator.chunks(shape, seed, folder=out.parent)
    return _written(out, source, (block for chunk in chunks for block in maker.blocks(chunk)), overwrite)


def from_kuairand(
    out: Path,
    paths: Sequence[Path],
    rules: Rules | None = None,
    *,
    rows_in_memory: int = ROWS_IN_MEMORY,
    overwrite: bool = False,
) -> Made:
    """From KuaiRand's logs. Raises `DatasetError`, `TraceError`, OSError.

    More than `rows_in_memory` events are sorted on the disk, beside `out`: 28 bytes an event.
    """
    rules = rules or Rules()
    files = kuairand.log_files(paths)
    check_writable(out, overwrite)
    bad, cutter = BadRows(), Cutter(rules)
    with ExternalSort(EVENT, kuairand.SORT_KEYS, out.parent, rows_in_memory) as sort:
        size = sum(file.stat().st_size for file in files)
        with tqdm(desc="reading", total=size, unit="B", unit_scale=True, disable=None, file=sys.stderr) as bar:
            start = kuairand.read(files, sort, bad, bar.update)
        settings = asdict(rules) | {"files": sorted(file.name for file in files), "action_bits": FLAGS}
        source = Source("kuairand", settings, start, rules.interval_ms / 1000, actions=ACTIONS)
        made = _written(out, source, cutter.blocks(_counted(sort.sorted(), sort.rows), start), overwrite)
    return Made(out, made.metadata, bad, cutter.beyond_longest)


def from_movielens(out: Path, path: Path, rules: Rules | None = None, *, overwrite: bool = False) -> Made:
    """From MovieLens ratings, a file or its folder. Raises `DatasetError`, `TraceError`, OSError."""
    rules = rules or Rules()
    data, cutter = movielens.load(path), Cutter(rules)
    rows = movielens_events.events(data)
    start = int(rows["time_ms"][0]) // 1000
    settings = asdict(rules) | {"file": data.source.name}
    source = Source("movielens", settings, start, rules.interval_ms / 1000, None, data.items, movielens.ACTIONS)
    made = _written(out, source, cutter.blocks(_counted([rows], len(rows)), start), overwrite)
    return Made(out, made.metadata, data.bad_rows, cutter.beyond_longest)


def _counted(pieces: Iterable[Rows], total: int) -> Iterable[Rows]:
    with tqdm(desc="cutting", total=total, unit="event", unit_scale=True, disable=None, file=sys.stderr) as bar:
        for piece in pieces:
            yield piece
            bar.update(len(piece))


def _written(out: Path, source: Source, blocks: Iterable[Block], overwrite: bool) -> Made:
    with (
        TraceWriter(out, source, overwrite) as writer,
        tqdm(desc="writing", unit="request", unit_scale=True, disable=None, file=sys.stderr) as bar,
    ):
        for block in blocks:
            writer.write(block)
            bar.update(len(block))
    return Made(out, writer.metadata)
