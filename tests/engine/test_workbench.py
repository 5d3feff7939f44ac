"""Peak memory is what start-up announced, whatever arrives: measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("pass_tokens", [2048, 8192])
@pytest.mark.parametrize("mode", ["hierarchical", "recompute"])
def test_a_cold_user_with_20_000_events_stays_within_the_workbench(tmp_path: Path, mode: str, pass_tokens: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.peak_memory", str(tmp_path), mode, str(pass_tokens)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, announced = map(int, done.stdout.split())
    assert peak <= announced
    assert peak >= announced / 8, "an announcement far from the truth is none"
