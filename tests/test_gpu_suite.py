"""The suite for a GPU, tried on the CPU: what a machine with a GPU is handed has run before."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, "MTSERVE_GPU_SUITE_ON": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_test_of_it_runs() -> None:
    said = run("tests/gpu")
    assert " passed" in said
    assert "no GPU here" not in said


@pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton (extra 'dev', Linux)")
def test_its_kernels_run_in_their_interpreter() -> None:
    said = run("tests/gpu/test_kernels.py", "-k", "scattered or (server and 32)", TRITON_INTERPRET="1")
    assert " passed" in said
