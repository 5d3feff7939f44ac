"""The file: round trips, damage that is named, nothing half under the final name, constant memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.traces import block as blocks_module
from perf.traces import make
from perf.traces.block import Block, Requests, offsets_of
from perf.traces.metadata import METADATA_MEMBER, Source, TraceError, block_member
from perf.traces.reader import Trace
from perf.traces.shapes import Shape
from perf.traces.writer import TraceWriter

SOURCE = Source("test", {"a": 1}, 1_000)
SHAPE = Shape(users=20, longest=500, items=1_000)
Step = tuple[int, int, int, int]
"""user, new events, pause (ms), candidates"""


def block_of(steps: list[Step]) -> Block:
    lengths: dict[int, int] = {}
    users, new, pauses, shown = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    for user, count, _, _ in steps:
        lengths[user] = lengths.get(user, 0) + count
    known: dict[int, int] = {}
    after = [known.__setitem__(user, known.get(user, 0) + count) or known[user] for user, count, _, _ in steps]
    requests = Requests(np.cumsum(pauses) / 1000, users, np.array(after, np.int64), offsets_of(new))
    events, candidates = int(new.sum()), int(shown.sum())
    return Block(
        requests,
        np.arange(events) * 7 + 1,
        (np.arange(events) % 5).astype(np.int32),
        1_000 + np.arange(events),
        offsets_of(shown),
        np.arange(candidates) + 10**12,
    )


STEPS = [(5, 3, 10, 0), (6, 0, 0, 2), (5, 1, 1_000, 1), (7, 4, 500, 0)]


def written(path: Path, *parts: Block, overwrite: bool = False) -> Path:
    with TraceWriter(path, SOURCE, overwrite) as writer:
        for part in parts:
            writer.write(part)
    return path


def plain(block: Block) -> list[tuple[object, ...]]:
    return [
        (one.user, one.time, one.history_length, *(column.tolist() for column in one[3:])) for one in block.arrivals()
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "a.trace", block_of(STEPS))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), *(st.integers(0, most) for most in (5, 3_000, 3))), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(1, 12),
)
def test_what_was_written_is_read_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], portion: int, requests: int, events: int
) -> None:
    whole, path = block_of(steps), tmp_path_factory.getbasetemp() / "round.trace"
    parts = [whole.slice(start, min(start + portion, len(whole))) for start in range(0, len(whole), portion)]
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks_module, sys.modules[TraceWriter.__module__]):
            patch.setattr(module, "BLOCK_REQUESTS", requests)
            patch.setattr(module, "BLOCK_EVENTS", events)
        written(path, *parts, overwrite=True)
        one_part = written(path.with_suffix(".whole"), whole, overwrite=True)
    assert path.read_bytes() == one_part.read_bytes(), "the same trace is the same bytes"
    with Trace(path) as trace:
        assert all(entry.requests <= requests for entry in trace.metadata.blocks)
        assert all(entry.events <= events or entry.requests == 1 for entry in trace.metadata.blocks)
        for first in {0, len(steps) // 2, len(steps)}:
            rest = whole.slice(first, len(whole))
            assert [row for block in trace.blocks(first) for row in plain(block)] == plain(rest)
            assert list(trace.requests(first)) == list(rest.requests.each())
        assert repr(trace.check()) == repr(trace.metadata.statistics), "as text: NaN is not equal to itself"
        assert (len(trace), trace.metadata.events) == (len(steps), len(whole.items))


def test_the_metadata_says_where_it_comes_from_and_what_ids_there_are(path: Path) -> None:
    with Trace(path) as trace:
        found = trace.metadata
    assert found.source == SOURCE
    assert (found.items, found.actions, found.candidates) == (10**12 + 3, 5, 3)
    assert found.seconds == 1.5
    with TraceWriter(path, replace(SOURCE, actions=256), overwrite=True) as writer:
        writer.write(block_of(STEPS))
        with pytest.raises(RuntimeError, match="not finished"):
            _ = writer.metadata
    assert writer.metadata.actions == 256, "what can occur, where it is known, not what happens to"


def test_anybody_s_numpy_reads_the_columns(path: Path) -> None:
    with np.load(path) as archive:
        assert archive["blocks/000000/user"].tolist() == [5, 6, 5, 7]
        assert archive["blocks/000000/offsets"].tolist() == [0, 3, 3, 4, 8]


def test_a_file_that_is_there_is_kept_unless_it_may_go(path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.trace exists already.*--force"):
        written(path, block_of(STEPS))
    written(path, block_of(STEPS[:1]), overwrite=True)
    with Trace(path) as trace:
        assert len(trace) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_writer_leaves_the_old_file_and_nothing_else(path: Path, error: type[BaseException]) -> None:
    before = path.read_bytes()
    with suppress(error), TraceWriter(path, SOURCE, overwrite=True) as writer:
        writer.write(block_of(STEPS))
        raise error
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_trace_without_requests_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="without a single request"):
        written(tmp_path / "none.trace")
    assert not list(tmp_path.iterdir())


def changed(block: Block, **columns: object) -> Block:
    head = {name: columns.pop(name) for name in list(columns) if name in Requests.__dataclass_fields__}
    return replace(block, requests=replace(block.requests, **head), **columns)  # type: ignore[arg-type]


def wrong_blocks() -> Iterator[tuple[str, Block]]:
    good = block_of(STEPS)
    yield "request 1: time lies before", changed(good, time=np.array([1.0, 0.5, 2.0, 3.0]))
    yield "request 2: time is no finite number", changed(good, time=np.array([1.0, 1.5, np.nan, 3.0]))
    yield "request 3: user should be 1 or more", changed(good, user=np.array([5, 6, 5, 0]))
    yield "offsets begin at 1", changed(good, offsets=good.requests.offsets + 1)
    yield "request 1: offsets go down", changed(good, offsets=np.array([0, 3, 2, 4, 8]))
    yield (
        "items has 8 values, but offsets end at 9",
        changed(good, offsets=np.array([0, 3, 3, 4, 9]), history_length=np.array([3, 0, 4, 5])),
    )
    yield "time, user, history_length and offsets have 4, 4, 4, 4 values", changed(good, offsets=np.array([0, 3, 3, 8]))
    yield "request 0: history_length is smaller", changed(good, history_length=np.array([2, 0, 4, 4]))
    yield "actions has 2 values", changed(good, actions=np.zeros(2, np.int32))
    yield "candidate_offsets has 2 values", changed(good, candidate_offsets=np.array([0, 3]))
    yield "candidates has 1 values, but its offsets end at 3", changed(good, candidates=np.zeros(1, np.int64))
    yield "user 5 comes with 4 known and 1 new", changed(good, history_length=np.array([3, 0, 5, 4]))


@pytest.mark.parametrize(("message", "block"), [pytest.param(*wrong, id=wrong[0]) for wrong in wrong_blocks()])
def test_a_block_that_breaks_the_rules_is_refused(tmp_path: Path, message: str, block: Block) -> None:
    with pytest.raises(TraceError, match=r"a\.trace: block 0 cannot be written: .*") as caught:
        written(tmp_path / "a.trace", block)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def rewritten(path: Path, member: str, content: Callable[[bytes], bytes] | None) -> None:
    """The archive with one member changed, or without it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    old = members.pop(member)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        if content is not None:
            archive.writestr(member, content(old))


def metadata_with(**values: object) -> Callable[[bytes], bytes]:
    return lambda old: json.dumps(json.loads(old) | values).encode()


def column_of(*values: object, dtype: str = "int64") -> Callable[[bytes], bytes]:
    def content(old: bytes) -> bytes:
        del old
        buffer = io.BytesIO()
        np.save(buffer, np.array(values, dtype))
        return buffer.getvalue()

    return content


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        (METADATA_MEMBER, None, "the archive has no trace.json"),
        (METADATA_MEMBER, lambda old: b"{", "trace.json is not JSON"),
        (METADATA_MEMBER, lambda old: b"[]", 'does not say "format": "mtserve-trace"'),
        (METADATA_MEMBER, metadata_with(version=2), "format version 2; this reader knows version 1"),
        (METADATA_MEMBER, metadata_with(events=9), "says 9 events, but its blocks have 8"),
        (METADATA_MEMBER, metadata_with(blocks=[]), "lists no blocks"),
        (METADATA_MEMBER, metadata_with(source={}), "is incomplete"),
        (METADATA_MEMBER, metadata_with(items=5), "candidates|items go from 1 to 50, should be in 0 .. 4"),
        (block_member(0, "items"), None, "the archive has no blocks/000000/items.npy"),
        (block_member(0, "items"), lambda old: old[:-8], "blocks/000000/items.npy"),
        (block_member(0, "items"), column_of(1.5, dtype="float64"), "1 dimensions of float64, should be one of int64"),
        (block_member(0, "items"), column_of(1, 2), "items has 2 values, but offsets end at 8"),
        (block_member(0, "time"), column_of(0.0, 1.0, 2.0, 3.0, dtype="float64"), "but the index says"),
        (block_member(0, "offsets"), column_of(0, 3, 2, 4, 8), "block 0: request 1: offsets go down"),
        (block_member(0, "history_length"), column_of(3, 0, 9, 4), "user 5 comes with 8 known"),
    ],
)  # fmt: skip
def test_damage_is_named(path: Path, member: str, content: Callable[[bytes], bytes] | None, message: str) -> None:
    rewritten(path, member, content)
    with pytest.raises(TraceError, match=rf"a\.trace: .*({message.replace('[', '.')})"), Trace(path) as trace:
        trace.check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda old: old[: len(old) // 2], "is cut short"),
        (lambda old: b"user,item\n", r"is no trace: it begins with b'user'"),
        (lambda old: b"", "is no trace"),
    ],
)
def test_what_is_no_whole_file_is_refused(path: Path, content: Callable[[bytes], bytes], message: str) -> None:
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(TraceError, match=message):
        Trace(path)


def test_flipped_bytes_are_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(block_member(0, "items"))
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"a\.trace: blocks/000000/items\.npy: damaged"), Trace(path) as trace:
        list(trace.arrivals())


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no file"):
        Trace(tmp_path / "none.trace")
    with pytest.raises(TraceError, match="cannot read"):
        Trace(tmp_path)
    with pytest.raises(TraceError, match="there is no folder"):
        written(tmp_path / "none" / "a.trace", block_of(STEPS))


PEAK = """
import sys, tracemalloc
from pathlib import Path
from perf.traces.reader import Trace
with Trace(Path(sys.argv[1])) as trace:
    next(trace.arrivals())
    tracemalloc.start()
    events = sum(arrival.new for arrival in trace.arrivals())
    assert events == trace.metadata.events
    print(tracemalloc.get_traced_memory()[1], len(trace))
"""


def test_a_long_trace_replays_in_the_memory_of_a_short_one(tmp_path: Path) -> None:
    peaks = []
    for users in (40, 200):
        path = tmp_path / f"{users}.trace"
        make.generated(path, "test", replace(Shape(), users=users), seed=0)
        command = [sys.executable, "-c", PEAK, str(path)]
        peak, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        peaks.append(int(peak))
    assert int(count) > 200_000
    assert peaks[1] < 1.1 * peaks[0], "five times as many requests"
    assert peaks[1] < 16 << 20
