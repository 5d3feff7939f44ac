"""Every command of the laboratory at its smallest, against real servers: it ends, and its result is one for reports."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from perf.lab.result import Result

# The command, and names that its tables and figures must have.
COMMANDS = {
    "paradigms": ("Batches of 2 (Table 1)", "device hit over recompute"),
    "steps": ("A batch of 2, milliseconds by step", "batch 1, hierarchical, 8 encode"),
    "chunks": ("Chunk sizes (Table 3)", "chunk 32, end to end"),
    "capacity": ("Device memory (Table 6, Figure 5)", "device 50%, device hits"),
    "intervals": ("Intervals between a user's requests (Figure 4)", "median interval"),
    "tokens": ("Tokens processed for 3 requests", "tokens, hierarchical"),
    "memory": ("Memory (Appendix C)", "announced over the largest it was"),
    "scale": ("Latency against history length", "history 64, device"),
}


@pytest.mark.server
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_measures_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    table, figure = COMMANDS[name]
    file = tmp_path / "results" / f"{name}.json"
    assert importlib.import_module(f"perf.{name}").main(["--preset", "smoke", "--json", str(file)]) == 0
    printed, result = capsys.readouterr().out, Result.read(file)
    assert (result.command, result.preset, result.interrupted) == (name, "smoke", False)
    assert any(own.title.startswith(table) for own in result.tables)
    assert figure in {own.name for own in result.figures}
    assert all(own.low <= own.value <= own.high for own in result.figures)
    assert result.environment["commit"]
    for own in result.tables:
        assert own.title in printed
        assert all(len(row) == len(own.head) for row in (*own.rows, *own.paper))


@pytest.mark.server
def test_reuse_processes_fewer_tokens_and_finds_what_it_should() -> None:
    from perf.lab.command import Findings
    from perf.lab.presets import SMOKE
    from perf.tokens import NEW, measure

    findings = Findings()
    measure(SMOKE, 3, findings)
    by_name = {figure.name: figure.value for figure in findings.figures}
    known, candidates = SMOKE.history, SMOKE.candidates
    assert by_name["tokens, hierarchical"] == known + 2 * (NEW + candidates)
    assert by_name["tokens, recompute"] == 3 * known + NEW + 2 * NEW + 2 * candidates
