"""The GPU kernels on the CPU, through their language's interpreter, in processes of their own.

Whether a kernel is interpreted is decided when `triton` is first imported, for the whole process, and for good. In this
one the kernels are to be compiled (`test_compile.py`), or, where there is a GPU, to run on it. By hand:
`TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = FOLDER.parent.parent.parent
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton (extra 'dev', Linux)")
MODULES = sorted(path.name for path in FOLDER.glob("test_*.py"))


def run(module: str, marker: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker, str(FOLDER / module)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_interpreted(module: str) -> None:
    run(module, "not slow")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_interpreted_at_length() -> None:
    run("test_attention_kernels.py", "slow")
