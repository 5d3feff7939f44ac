"""Every measuring command in its smoke preset, with real engines and servers; all parts of all of them: marker slow."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from perf import chunks, core, intervals, load, memory, paradigms, scale, steps, tokens
from perf.lab import paper
from perf.lab.command import Command, Run, main
from perf.lab.result import Result, Table
from perf.lab.result import load as read
from perf.traces.make import generated as write_trace
from perf.traces.request import Request
from perf.traces.shapes import Shape

COMMANDS = (
    "core",
    "paradigms",
    "steps",
    "chunks",
    "capacity",
    "hitratio",
    "intervals",
    "memory",
    "tokens",
    "load",
    "scale",
)
server = pytest.mark.server


def command(name: str) -> Command:
    found: Command = importlib.import_module(f"perf.{name}").COMMAND
    return found


def measure(what: Command, folder: Path, *words: str) -> Result:
    file = folder / "result.json"
    assert main(what, ["--preset", "smoke", "--json", str(file), *words]) == 0
    return read(file)


def table(result: Result, key: str) -> Table:
    return next(table for table in result.tables if table.key == key)


def column(found: Table, name: str) -> list[object]:
    number = [column.name for column in found.columns].index(name)
    return [row[number] for row in found.rows]


@pytest.mark.parametrize("name", [*COMMANDS, "replay"])
def test_help_tells_presets_examples_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    what = importlib.import_module("perf.replay").COMMAND if name == "replay" else command(name)
    with pytest.raises(SystemExit) as end:
        main(what, ["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert "h200" in said
    assert f"example: python -m perf.{name}" in said
    assert "130 interrupted" in said


def test_paradigms_in_engines(tmp_path: Path) -> None:
    found = table(measure(paradigms.COMMAND, tmp_path, "--only", "mt", "--through", "engine"), "mt")
    rows = [dict(zip([column.name for column in found.columns], row, strict=True)) for row in found.rows]
    assert [(row["batch"], row["paradigm"]) for row in rows] == [
        (batch, mode) for batch in (1, 4, 8) for mode in ("recompute", "device", "hierarchical")
    ]
    for row in rows:
        assert (row["total hits"] is None) == (row["paradigm"] == "recompute")
        if row["paradigm"] == "device":
            assert row["total hits"] == row["device hits"]
        if row["paradigm"] == "hierarchical":
            assert row["total hits"] > 0.9  # type: ignore[operator]


def test_the_ways_of_the_core_lead_to_the_same_scores(tmp_path: Path) -> None:
    result = measure(core.COMMAND, tmp_path, "--only", "ways")
    assert column(table(result, "ways"), "way") == [
        "from the cache", "bare products", "recomputed", "recomputed plainly"
    ]  # fmt: skip
    figures = {found.name: found for found in result.figures}
    assert figures["scores: largest difference over the largest score"].verdict == "met"
    assert figures["from the cache over bare products"].value > 1
    assert figures["recomputed over from the cache"].value > 1


def test_pages_are_measured_side_by_side(tmp_path: Path) -> None:
    found = table(measure(core.COMMAND, tmp_path, "--only", "pages"), "pages")
    assert column(found, "tokens in a page") == list(core.SIZES["smoke"].pages)
    assert column(found, "visits") == [core.SIZES["smoke"].visits] * len(found.rows)


@server
def test_steps_add_up_and_a_server_adds_to_them(tmp_path: Path) -> None:
    result = measure(steps.COMMAND, tmp_path, "--only", "around")
    found = table(result, "around")
    columns = ("latency", "core", "around", "a model that does nothing")
    for latency, encode, around, nothing in zip(*(column(found, name) for name in columns), strict=True):
        assert isinstance(encode, float)
        assert 0 < nothing < latency  # type: ignore[operator]
        assert encode > 0.1
        assert around == pytest.approx(latency - encode)  # type: ignore[operator]
        assert around > 0  # type: ignore[operator]


def test_chunks_are_measured_side_by_side(tmp_path: Path) -> None:
    result = measure(chunks.COMMAND, tmp_path)
    found = table(result, "chunks")
    assert column(found, "chunk tokens") == list(chunks.SIZES["smoke"].chunks)
    for whole, computing in zip(column(found, "end to end"), column(found, "computing"), strict=True):
        assert whole > computing > 0  # type: ignore[operator]
    assert table(result, "paper chunks").origin == "paper"


@pytest.mark.parametrize("words", [("hitratio",), ("capacity", "--only", "hits")])
def test_more_memory_finds_more(tmp_path: Path, words: tuple[str, ...]) -> None:
    name, *options = words
    result = measure(command(name), tmp_path, *options, "--scale", "0.008")
    found = table(result, "hits")
    flushed = [row for row in found.rows if row[1] == "yes"]
    shares, device, total = ([row[number] for row in flushed] for number in (0, 2, 3))
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert device == sorted(device)  # type: ignore[type-var]
    without = {row[0]: row for row in found.rows if row[1] == "no"}
    for row in flushed:
        assert row[2] + row[4] + row[5] <= 1  # type: ignore[operator]
        if row[0] in without:
            assert row[3] >= without[row[0]][3]  # type: ignore[operator]
    assert total[-1] > 0.99  # type: ignore[operator]


@server
def test_memory_is_what_start_up_said(tmp_path: Path) -> None:
    result = measure(memory.COMMAND, tmp_path)
    sizes = dict(table(result, "memory").rows)  # type: ignore[arg-type]
    assert sizes["said at start-up: now"] < sizes["measured: peak"] < 1.1 * sizes["said at start-up: at most"]
    ours, theirs = (dict(table(result, key).rows) for key in ("configuration", "paper memory"))  # type: ignore[arg-type]
    for pool in ("primary cache", "onload buffer"):
        assert ours[pool] == theirs[pool]


def test_tokens_are_the_papers_but_for_one(tmp_path: Path) -> None:
    found = table(measure(tokens.COMMAND, tmp_path), "tokens")
    for way, counted in zip(column(found, "way"), column(found, "in all"), strict=True):
        assert abs(counted - paper.TOKENS[str(way)]) <= 1  # type: ignore[operator]


def test_intervals_of_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "few.trace"
    write_trace(trace, "few", Shape(users=5, days=1.0, longest=300), seed=1)
    found = table(measure(intervals.COMMAND, tmp_path, "--trace", str(trace)), "intervals")
    assert column(found, "trace") == ["few"]
    assert column(found, "within a week") == [1.0]
    gaps = intervals.intervals([Request(1, 0.0, 1, 1), Request(2, 5.0, 1, 1), Request(1, 60.0, 2, 1)])
    assert np.array_equal(gaps, [60.0])


@server
def test_perf_analyzer_loads_both_models(tmp_path: Path) -> None:
    found = table(measure(load.COMMAND, tmp_path, "--only", "rate"), "rate")
    assert column(found, "paradigm") == ["recompute", "hierarchical"]
    for wanted, answered in zip(column(found, "requests a second"), column(found, "answers"), strict=True):
        assert answered == pytest.approx(wanted, rel=0.3)


@server
def test_scale_finds_histories_where_it_means_to(tmp_path: Path) -> None:
    result = measure(scale.COMMAND, tmp_path, "--only", "history")
    assert column(table(result, "history"), "history") == list(scale.SIZES["smoke"].histories)
    assert {"by history: history 400, batch 1: recompute over host hit"} <= {found.name for found in result.figures}


def test_a_gpu_preset_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(chunks.COMMAND, ["--preset", "h200"]) == 1
    assert "preset h200 measures a GPU" in capsys.readouterr().err


def test_an_interrupt_writes_what_there_is(tmp_path: Path) -> None:
    def interrupted(run: Run) -> None:
        run.at_the_end(lambda: run.tables.append(paper.chunks()))
        raise KeyboardInterrupt

    file = tmp_path / "result.json"
    assert main(Command("chunks", "", "", interrupted), ["--preset", "smoke", "--json", str(file)]) == 130
    assert read(file).interrupted
    assert read(file).tables == [paper.chunks()]


@pytest.mark.slow
@server
@pytest.mark.parametrize("name", COMMANDS)
def test_the_whole_smoke_preset(name: str, tmp_path: Path) -> None:
    result = measure(command(name), tmp_path)
    assert result.figures
    assert result.tables
    assert all(np.isfinite(figure.value) for figure in result.figures)
    if name not in ("capacity",):
        assert result.duration_s < 60
