"""The regression guard: what counts as worse, what as noise, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perf import compare
from perf.lab.result import Figure, Result, ResultError, figure, load, save
from perf.stats import Spread, mean_ratio, mean_spread, ratios


def measured(value: float, around: float = 0.02, better: str = "lower") -> Figure:
    low, high = value * (1 - around), value * (1 + around)
    return Figure(name="x", value=value, unit="ms", better=better, low=low, high=high, samples=9)  # type: ignore[arg-type]


def counted(value: float, better: str = "higher") -> Figure:
    return Figure(name="x", value=value, unit="%", better=better)  # type: ignore[arg-type]


def result(*figures: Figure, **changes: Any) -> Result:
    given = {
        "command": "steps", "preset": "smoke", "seed": 0, "settings": {}, "machine": {"cpu": "this", "cores": 2},
        "versions": {}, "commit": "abc", "started": "2026-01-01T00:00:00+00:00", "duration_s": 1.0,
        "figures": list(figures),
    }  # fmt: skip
    return Result(**(given | changes))


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (measured(100), measured(104), "same"),  # within the tolerance
        (measured(100, 0.3), measured(130, 0.3), "same"),  # quartiles overlap
        (measured(100), measured(130), "worse"),
        (measured(100), measured(70), "better"),
        (measured(100, better="higher"), measured(70, better="higher"), "worse"),
        (measured(100, better="neither"), measured(70, better="neither"), "changed"),
        (counted(0.998), counted(0.997), "same"),
        (counted(0.998), counted(0.98), "worse"),
        (counted(0.0), counted(0.0), "same"),
        (counted(0.0, "lower"), counted(5.0, "lower"), "worse"),
        (counted(float("nan")), counted(1.0), "changed"),
    ],
)
def test_the_verdict_knows_noise(before: Figure, after: Figure, word: str) -> None:
    assert compare.verdict(before, after).word == word


def test_what_is_gone_is_worse_and_what_is_new_is_not() -> None:
    old, new = result(measured(1)), result(measured(1), counted(1).model_copy(update={"name": "y"}))
    assert [found.word for found in compare.compare(old, new)] == ["same", "new"]
    assert compare.exit_code(compare.compare(old, new)) == 0
    assert compare.exit_code(compare.compare(new, old)) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": "scale"}, "the command differs: steps in A, scale in B"),
        ({"preset": "cpu"}, "the preset differs"),
        ({"seed": 1}, "the seed differs"),
        ({"settings": {"times": 2}}, "the settings differs"),
        ({"machine": {"cpu": "other", "cores": 8}}, "the machine differs: this, 2 cores in A, other, 8 cores in B"),
        ({"interrupted": True}, "B was interrupted"),
        ({"figures": []}, "B has no figures"),
    ],
)
def test_what_says_nothing_about_one_another(change: dict[str, Any], why: str) -> None:
    with pytest.raises(compare.NotComparable, match=why):
        compare.check_comparable(result(measured(1)), result(measured(1), **change))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, other = (tmp_path / name for name in ("a.json", "b.json", "other.json"))
    save(result(measured(100)), a)
    save(result(measured(200)), b)
    save(result(measured(100), machine={"cpu": "other", "cores": 2}), other)
    assert compare.main([str(a), str(a)]) == 0
    assert compare.main([str(b), str(a)]) == 0
    capsys.readouterr()
    assert compare.main([str(a), str(b)]) == 1
    assert "2.000    WORSE" in capsys.readouterr().out
    assert compare.main([str(a), str(other)]) == 2
    assert "measure both on one" in capsys.readouterr().err
    assert compare.main([str(a), str(other), "--any-machine"]) == 0
    (tmp_path / "bad.json").write_text('{"format": "something"}')
    assert compare.main([str(a), str(tmp_path / "bad.json")]) == 2
    assert "is no result of this version" in capsys.readouterr().err
    assert compare.main([str(a), str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_result_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    written = result(measured(1), counted(2).model_copy(update={"name": "y", "aim": 1.0}))
    save(written, tmp_path / "deep" / "result.json")
    assert load(tmp_path / "deep" / "result.json") == written
    assert [found.verdict for found in written.figures] == ["", "met"]


def test_a_result_with_two_figures_of_one_name_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two figures are called 'x'"):
        result(measured(1), counted(1))
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ResultError, match="is no result"):
        load(tmp_path / "x.json")


def test_spreads() -> None:
    assert Spread.of([1, 2, 3, 4, 5]) == Spread(3, 2, 4, 3, 5)
    assert Spread.of([]).count == 0
    ratio = ratios([10, 10, 12], [1, 2, 2])
    assert ratio.median == 5
    assert ratio.low <= 5 <= ratio.high
    assert mean_ratio([2, 4], [1, 1]).mean == 3
    assert mean_spread([1, 3]).median == 2
    made = figure("x", Spread(1, 0.5, 2, 1, 3), "ms", scale=1e3)
    assert (made.value, made.low, made.high) == (1000, 500, 2000)
