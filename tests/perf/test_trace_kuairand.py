"""KuaiRand's logs: official files, several at once, bad rows, what is not a log."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.datasets import BadRows, DatasetError
from perf.traces import csv_integers, kuairand, make
from perf.traces.feedback import FLAGS
from perf.traces.make import Made
from perf.traces.reader import Trace

T0 = 1_649_376_000_000
HEADER = kuairand.OFFICIAL_HEADER


def row(user: object, video: object, time_ms: object, **flags: object) -> str:
    values: dict[str, object] = dict.fromkeys(HEADER.split(","), 0)
    return ",".join(
        str(value) for value in (values | {"user_id": user, "video_id": video, "time_ms": time_ms} | flags).values()
    )


def log(path: Path, rows: Sequence[str], header: str = HEADER, end: str = "\n") -> Path:
    path.write_bytes("".join(f"{line}{end}" for line in (header, *rows)).encode())
    return path


def made(tmp_path: Path, *paths: Path, rows_in_memory: int = 1000) -> Made:
    return make.from_kuairand(tmp_path / "out.trace", paths, rows_in_memory=rows_in_memory, overwrite=True)


def contents(trace_file: Path) -> list[tuple[object, ...]]:
    with Trace(trace_file) as trace:
        trace.check()
        arrivals = list(trace.arrivals())
    return [(a.user, a.time, a.history_length, a.items.tolist(), a.actions.tolist()) for a in arrivals]


ROWS = [
    row(3, 100, T0 + 1_000, is_click=1, long_view=1),
    row(3, 7, T0 + 2_000, is_like=1, is_profile_enter=1),
    row(0, 0, T0 + 90_000),
    row(3, 8, T0 + 61_500, is_hate=1),
]
EXPECTED = [
    (4, 1.0, 2, [101, 8], [65, 130]),
    (4, 60.5, 3, [9], [32]),
    (1, 89.0, 1, [1], [0]),
]


def test_a_log_becomes_requests_of_a_minute(tmp_path: Path) -> None:
    result = made(tmp_path, log(tmp_path / "log_standard_1k.csv", ROWS))
    assert contents(result.path) == EXPECTED
    source = result.metadata.source
    assert (source.interval_s, source.start_unix_s) == (60.0, T0 // 1000 + 1)
    assert source.settings["files"] == ["log_standard_1k.csv"]
    assert source.settings["action_bits"]["long_view"] == 64
    assert (result.metadata.actions, result.metadata.items) == (256, 102)
    assert len(result.bad_rows) == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b"\n", b"\n\n") + b"\r\n\r\n",
        gzip.compress,
    ],
    ids=["CRLF", "BOM", "no newline at the end", "empty lines", "gzip"],
)
def test_how_a_file_was_saved_does_not_matter(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = log(tmp_path / "log_random_1k.csv", ROWS)
    path.write_bytes(spoil(path.read_bytes()))
    result = made(tmp_path, path)
    assert contents(result.path) == EXPECTED
    assert len(result.bad_rows) == 0


def test_columns_may_stand_in_any_order_and_others_may_be_missing(tmp_path: Path) -> None:
    names = ["time_ms", *reversed(list(FLAGS)), "video_id", "extra", "USER_ID "]
    values = {"time_ms": T0, "video_id": 4, "USER_ID ": 9, "is_like": 1}
    line = ",".join(str(values.get(name, 0)) for name in names)
    assert contents(made(tmp_path, log(tmp_path / "log.csv", [line], ",".join(names))).path) == [(10, 0.0, 1, [5], [2])]


def test_the_order_of_files_and_rows_does_not_matter_and_ties_are_in_one_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        row(rng.integers(3), rng.integers(50), T0 + 500 * rng.integers(400), is_click=rng.integers(2))
        for _ in range(900)
    ]
    results = []
    for attempt in range(3):
        order = rng.permutation(len(rows))
        parts = np.array_split(order, 3)
        files = [
            log(tmp_path / f"log_{attempt}_{number}.csv", [rows[at] for at in part])
            for number, part in enumerate(parts)
        ]
        results.append(contents(made(tmp_path, *files, rows_in_memory=(1000, 100, 17)[attempt]).path))
    assert results[0] == results[1] == results[2]
    assert sum(len(request[3]) for request in results[0]) == 900  # type: ignore[arg-type]


def test_folders_hold_logs_and_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    log(tmp_path / "data" / "log_standard_a_part1.csv", ROWS[:2])
    second = log(tmp_path / "data" / "log_random.csv", ROWS[2:])
    log(tmp_path / "data" / "user_features_1k.csv", ["1"], "user_id")
    result = made(tmp_path, tmp_path, second)
    assert contents(result.path) == EXPECTED
    assert result.metadata.source.settings["files"] == ["log_random.csv", "log_standard_a_part1.csv"]


BAD = {
    "1,2,3": "19 columns expected but not found",
    row("", 1, T0): "user_id not a whole number",
    row(-1, 1, T0): "user_id not a whole number",
    row(1, "1.5", T0): "video_id not a whole number",
    row(1, '"7"', T0): "video_id not a whole number",
    row(1, 10**18, T0): "video_id not a whole number",
    row(1, 1, T0 // 1000): "a time_ms outside the years 2000 to 2099",
    row(1, 1, T0 * 1000): "a time_ms outside the years 2000 to 2099",
    row(1, 1, "nan"): "time_ms not a whole number",
    row(1, 1, T0, is_like=2): "is_like neither 0 nor 1",
    row(1, 1, T0, is_profile_enter=""): "is_profile_enter not a whole number",
    row(1, 1, T0) + ",1": "19 columns expected but not found",
}


def test_bad_rows_are_left_out_counted_and_named_with_file_and_line(tmp_path: Path) -> None:
    good = log(tmp_path / "log_a.csv", ROWS[:2])
    bad = log(tmp_path / "log_b.csv", [*BAD, "", *ROWS[2:], row(1, "x", T0)])
    result = made(tmp_path, good, bad)
    assert contents(result.path) == EXPECTED
    counts = {reason: list(BAD.values()).count(reason) for reason in BAD.values()}
    counts["video_id not a whole number"] += 1
    assert dict(result.bad_rows.counts) == counts
    assert "log_b.csv, line 2: 19 columns expected but not found" in result.bad_rows.examples
    assert len(result.bad_rows.examples) == 5
    assert str(result.bad_rows).startswith("13 rows left out (4 with video_id not a whole number, ")


def test_each_bad_row_is_named_by_its_own_line(tmp_path: Path) -> None:
    for text, reason in BAD.items():
        result = made(tmp_path, log(tmp_path / "log.csv", [*ROWS, text, *ROWS]))
        assert result.bad_rows.examples == [f"log.csv, line 6: {reason}"]


def test_a_torn_gzip_file_gives_what_can_be_read(tmp_path: Path) -> None:
    rows = [row(1, number * 7919 % 4_000_000, T0 + number) for number in range(50_000)]
    whole = log(tmp_path / "whole.csv", rows).read_bytes()
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(whole)[:-5_000])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_integers, "CHUNK_BYTES", 1 << 16)
        result = made(tmp_path, path)
    assert 10_000 < result.metadata.events + result.beyond_longest < 50_000
    assert [reason for reason in result.bad_rows.counts if "missing or damaged" in reason]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"log\.csv is empty: its first line should be user_id,video_id"),
        (b"a,b\n1,2\n", r"log\.csv, line 1: the header lacks user_id, video_id, .*; it has a,b; KuaiRand's logs have"),
        (HEADER.replace("is_click", "isclick").encode(), r"lacks is_click \(is 'isclick' meant to be that\?\); it has"),
        (HEADER.replace(",time_ms", "").encode(), r"the header lacks time_ms; it has"),
        (HEADER.encode() + b"\n", r"log\.csv: not one usable row; no bad rows"),
        (HEADER.encode() + b"\nx\n", r"not one usable row; 1 rows left out \(1 with 19 columns expected.*line 2"),
        (gzip.compress(HEADER.encode())[:20], "not one usable row|lacks"),
        (bytes(range(256)) * 2_000, "the header lacks"),
    ],
)
def test_what_is_no_log_is_an_error_that_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        made(tmp_path, tmp_path / "log.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_missing_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"there is no file or folder .*none\.csv"):
        made(tmp_path, tmp_path / "none.csv")
    with pytest.raises(DatasetError, match=r"holds no log_\*\.csv"):
        made(tmp_path, tmp_path)


FIELD = st.text(alphabet='0123456789-. x"', max_size=20)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(FIELD, min_size=1, max_size=4), max_size=25), st.sampled_from(["\n", "\r\n"]), st.integers(1, 60)
)
def test_numbers_are_those_that_a_plain_parser_finds(lines: list[list[str]], end: str, chunk: int) -> None:
    text = "".join(",".join(fields) + end for fields in lines)
    expected, bad = [], []
    for number, fields in enumerate(lines, start=2):
        if len(fields) == 3 and all(field.isdigit() and len(field) <= 18 for field in (fields[0], fields[2])):
            expected.append((number, int(fields[2]), int(fields[0])))
        elif fields != [""]:
            bad.append(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_integers, "CHUNK_BYTES", chunk)
        chunks = list(csv_integers.read(io.BytesIO(text.encode()), ["a", "b", "c"], ["c", "a"]))
    found = [
        (line, *values)
        for part in chunks
        for line, values in zip(part.lines.tolist(), part.values.tolist(), strict=True)
    ]
    assert found == expected
    assert sorted(line for part in chunks for lines_of in part.bad.values() for line in lines_of.tolist()) == bad


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_integers, "LONGEST_LINE", 1_000)
    monkeypatch.setattr(csv_integers, "CHUNK_BYTES", 600)
    text = b"1,2\n" + b"9" * 5_000 + b"\n3,4\n"
    chunks = list(csv_integers.read(io.BytesIO(text), ["a", "b"], ["a", "b"]))
    assert [values for part in chunks for values in part.values.tolist()] == [[1, 2], [3, 4]]
    assert {line for part in chunks for lines in part.bad.values() for line in lines.tolist()} == {3}


def test_bad_rows_keep_the_first_few_places() -> None:
    bad = BadRows()
    bad.add_many([], "nothing")
    bad.add_many(list(range(2, 9)), "this", "a.csv")
    bad.add(3, "that")
    assert (len(bad), dict(bad.counts)) == (8, {"this": 7, "that": 1})
    assert bad.examples == [f"a.csv, line {line}: this" for line in range(2, 7)]


def test_a_long_log_is_converted_in_the_memory_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_integers, "CHUNK_BYTES", 1 << 18)
    rng = np.random.default_rng(0)
    peaks = []
    for count in (50_000, 300_000):
        users, times = rng.integers(0, 200, count).tolist(), (T0 + rng.integers(0, 10**9, count)).tolist()
        lines = [
            f"{user},7,20220408,0,{time},1,0,0,0,0,0,1,1,1,0,0,0,0,1" for user, time in zip(users, times, strict=True)
        ]
        path = log(tmp_path / f"log_{count}.csv", lines)
        del users, times, lines
        tracemalloc.start()
        result = made(tmp_path, path, rows_in_memory=20_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert result.metadata.events == count
    assert peaks[1] < 1.25 * peaks[0], "six times as many events"
    assert peaks[1] < 24 << 20
