"""Take away each ordering of two streams and see which tests notice: `python -m tests.races.mutate_waits`.

Writes docs/waits.md; exit code 1 if an ordering can be removed unnoticed. Some 15 seconds each.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.races import waits

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "waits.md"
TESTS = ("tests/races/test_transfer_orders.py", "tests/races/test_engine_orders.py")

HEAD = """# Everything that orders two streams

Written by `python -m tests.races.mutate_waits`, which takes the orderings away one at a time, in a copy of the package,
and runs tests of `tests/races` against what is left. Each must be noticed; one that is not should not exist. A GPU is
not needed: on a CPU the same calls are made and a stream is a thread.

| ordering | where | noticed by |
|---|---|---|
"""


def killers(wait: waits.Wait | None) -> list[str]:
    """The tests that fail without `wait` (None: with everything in place)."""
    with tempfile.TemporaryDirectory(prefix="mtserve-mutant-") as name:
        copy = Path(name)
        skip = shutil.ignore_patterns("__pycache__")
        for folder in ("mtserve_backend", "tests/races", "tests/engine"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=skip)
        for file in ("pyproject.toml", "tests/__init__.py"):
            shutil.copy(ROOT / file, copy / file)
        if wait is not None:
            waits.remove(copy / "mtserve_backend", wait)
        run = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no",
                "-o", "timeout=60", *TESTS,
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if run.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", run.stdout, re.MULTILINE)
    return sorted(set(failed))


def row(wait: waits.Wait, killed_by: list[str]) -> str:
    noticed = "<br>".join(f"`{name}`" for name in killed_by) or "**nothing**"
    return f"| {wait.name} | `{wait.file}` {wait.function} | {noticed} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only orderings whose source or place holds this; writes no page")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="at a time (2): the tests sleep most of theirs"
    )
    arguments = parser.parse_args()
    only = arguments.only
    if already := killers(None):
        sys.stderr.write(f"these fail with every ordering in place: {', '.join(already)}\n")
        return 1
    rows, unnoticed = [], 0
    every = waits.find(ROOT / "mtserve_backend")
    wanted = [wait for wait in every if only in f"{wait.file} {wait.function} {wait.text}"]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for wait, killed_by in zip(wanted, pool.map(killers, wanted), strict=True):
            unnoticed += not killed_by
            rows.append(row(wait, killed_by))
            sys.stdout.write(rows[-1] + "\n")
            sys.stdout.flush()
    if not only:
        PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
