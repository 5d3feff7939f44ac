"""`perf.gpu` on a CPU at its small scale: every part's code, and what becomes of a part that does not end well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from perf.gpu import __main__ as command
from perf.gpu.figures import Figure, of_rates, of_times, table

PARTS = ["ceilings", "kernels", "transfers", "modes, batch 2", "modes, batch 1"]


def test_every_part_gives_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    assert command.main(["--device", "cpu", "--scale", "small", "--json", str(file)]) == 0
    report, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert list(report["parts"]) == PARTS
    assert report["device"] == {"name": "cpu"}
    for name, part in report["parts"].items():
        assert part["figures"], name
        for figure in part["figures"]:
            assert figure["value"] >= 0
            assert figure["name"] in printed
            assert figure["verdict"] == "", "nothing is aimed at on a CPU"
    for mode in ("recompute", "device, all found there", "all from the host"):
        assert any(mode in figure["name"] for figure in report["parts"]["modes, batch 2"]["figures"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "ceilings"]) == 1
    assert "sees no GPU here; try `--device cpu --scale small`" in capsys.readouterr().out


def test_a_part_that_hangs_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.LIMITS_S, "modes", 1.0)
    monkeypatch.setattr(command, "tasks", lambda *_: [("modes", "1"), ("ceilings",)])
    file = tmp_path / "gpu.json"
    assert command.main(["--device", "cpu", "--scale", "small", "--json", str(file)]) == 1
    parts = json.loads(file.read_text())["parts"]
    assert parts["modes, batch 1"] | {"seconds": 0} == {"seconds": 0, "error": "not done after 1 s", "figures": []}
    assert parts["ceilings"]["figures"]
    assert "no figures: not done after 1 s" in capsys.readouterr().out


def test_what_was_measured_before_an_interruption_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_part, file = command.run_part, tmp_path / "gpu.json"

    def interrupted(task: tuple[str, ...], *rest: object) -> command.Part:
        if task == ("kernels",):
            raise KeyboardInterrupt
        return run_part(task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--device", "cpu", "--scale", "small", "--json", str(file)])
    parts = json.loads(file.read_text())["parts"]
    assert list(parts) == ["ceilings"]
    assert parts["ceilings"]["figures"]


def test_a_figure_is_held_against_its_floor_or_its_ceiling() -> None:
    attended = of_times("attend", [0.002, 0.001, 0.003], floor=0.001, aim=0.6)
    assert (attended.value, attended.low, attended.high, attended.floor) == (2.0, 1.0, 3.0, 1.0)
    assert attended.share == pytest.approx(0.5)
    assert attended.verdict == "MISSED"
    copied = of_rates("copy", 8e9, [1.0, 2.0, 4.0], ceiling=5e9, aim=0.8)
    assert (copied.value, copied.share, copied.verdict) == (4.0, pytest.approx(0.8), "met")
    waited = Figure("wait", 3.0, "ms", share=0.2, aim=0.1, below=True)
    assert waited.verdict == "MISSED"
    assert Figure("speed-up", 3.2, "x", aim=3.1).verdict == "met"
    assert "at most 10%: MISSED" in table([waited])
    assert "at least 60%: MISSED" in table([attended])
    assert Figure.from_dict(attended.to_dict()) == attended
