"""perf_analyzer's inputs follow docs/protocol.md."""

import json
from pathlib import Path

import pytest

from perf.perf_inputs import Workload, main, streams, write


def test_streams_grow_and_begin_with_a_whole_history() -> None:
    workload = Workload(streams=20, steps=6, history=(5, 9), new=(1, 3), candidates=(1, 4))
    deltas = 0
    for stream in streams(workload):
        history: list[int] = []
        for number, step in enumerate(stream):
            start = step["HISTORY_START"]["content"][0]
            items = step["HISTORY_ITEMS"]["content"]
            assert start in ((0,) if number == 0 else (0, len(history)))
            whole = history[:start] + items
            assert whole[: len(history)] == history
            assert len(whole) - len(history) in range(*((5, 10) if number == 0 else (1, 4)))
            assert len(step["CANDIDATES"]["content"]) in range(1, 5)
            deltas += start > 0
            history = whole
    assert 0.3 < deltas / (20 * 5) < 0.7


def test_shapes_are_those_of_the_contents() -> None:
    for stream in streams(Workload()):
        for step in stream:
            assert set(step) == {"HISTORY_ITEMS", "HISTORY_ACTIONS", "HISTORY_START", "CANDIDATES"}
            assert all(tensor["shape"] == [len(tensor["content"])] for tensor in step.values())
            assert step["HISTORY_ITEMS"]["shape"] == step["HISTORY_ACTIONS"]["shape"]
            assert max(step["HISTORY_ITEMS"]["content"]) < 1000
            assert max(step["HISTORY_ACTIONS"]["content"]) < 4


def test_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, Workload(seed=seed))
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert (tmp_path / "a").read_text() != (tmp_path / "c").read_text()


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--streams", "3", "--steps", "2", "--history", "4", "4", "--delta-share", "0"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert [len(stream) for stream in data] == [2, 2, 2]
    assert all(step["HISTORY_START"]["content"] == [0] for stream in data for step in stream)


@pytest.mark.parametrize(
    "wrong", [["--history", "5", "2"], ["--new", "-1", "2"], ["--streams", "0"], ["--items", "0"], ["--actions", "-3"]]
)
def test_bounds_that_make_no_sense_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(wrong)
    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err
