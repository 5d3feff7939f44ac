"""`python -m perf.gpu`: what a GPU can do, and how near mtserve comes to it. One command, less than nine minutes.

Ceilings of memory, link and products; every kernel against its floor; loads and saves against the link; the three
cache modes at every batch size with the paper's model. Each part runs in a process of its own with a time limit: one
that fails or hangs costs its own figures only. Needs Python, torch, triton and numpy, and no network.

No figure of it is in the documents before a GPU has run it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.environment import environment
from perf.gpu.figures import Figure, table
from perf.gpu.place import SCALES

# In order of worth: what comes last is left out first when time is short. Seconds for each process.
LIMITS_S = {"ceilings": 60.0, "kernels": 90.0, "transfers": 90.0, "modes": 120.0}
ALL_S = 530.0
EPILOG = """\
examples:
  python -m perf.gpu --json gpu.json
  python -m perf.gpu --only kernels
  python -m perf.gpu --device cpu --scale small      every part, in seconds, without a GPU

exit codes: 0 every part gave its figures; 1 some did not (the others are written); 2 the command line is wrong
"""


@dataclass(frozen=True)
class Part:
    """What came of one part; `error` says why there are no figures."""

    name: str
    seconds: float
    figures: tuple[Figure, ...] = ()
    error: str = ""
    device: dict[str, Any] | None = None


def tasks(scale: str, only: str | None) -> list[tuple[str, ...]]:
    """Parts with their arguments; the modes are a process for each batch size, the busiest of the paper's first."""
    sizes = SCALES[scale]
    batches = sorted(sizes.batches, key=lambda batch: (batch != sizes.busy, batch))
    every = [("ceilings",), ("kernels",), ("transfers",), *(("modes", str(batch)) for batch in batches)]
    return [task for task in every if only in (None, task[0])]


def run_part(task: tuple[str, ...], device: str, scale: str, limit_s: float) -> Part:
    """In a process of its own."""
    begin = time.monotonic()
    name, *rest = task
    command = [sys.executable, "-m", "perf.gpu.part", name, device, scale, *rest]
    called = ", batch ".join(task)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Part(called, time.monotonic() - begin, error=f"not done after {limit_s:.0f} s")
    seconds = time.monotonic() - begin
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Part(called, seconds, error="\n".join(said[-12:]))
    result = json.loads(done.stdout.splitlines()[-1])
    return Part(called, seconds, tuple(map(Figure.from_dict, result["figures"])), device=result["device"])


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    begin = time.monotonic()
    parts: list[Part] = []
    for task in tasks(arguments.scale, arguments.only):
        left = ALL_S - (time.monotonic() - begin)
        part = run_part(task, arguments.device, arguments.scale, max(1.0, min(LIMITS_S[task[0]], left)))
        parts.append(part)
        sys.stdout.write(f"{part.name}, {part.seconds:.0f} s\n")
        sys.stdout.write((table(part.figures) if part.figures else f"  no figures: {part.error}") + "\n\n")
        sys.stdout.flush()
        if arguments.json:  # after every part: whatever ends this process, what was measured is kept
            text = json.dumps(report(parts, arguments.scale, time.monotonic() - begin), indent=2)
            arguments.json.write_text(text + "\n", encoding="utf-8")
    return int(any(not part.figures for part in parts))


def report(parts: Sequence[Part], scale: str, seconds: float) -> dict[str, Any]:
    """What is written to the file: the machine, and every part so far."""
    return {
        **environment(),
        "device": next((part.device for part in parts if part.device), None),
        "scale": scale,
        "seconds": seconds,
        "parts": {
            part.name: {
                "seconds": part.seconds,
                "error": part.error,
                "figures": [figure.to_dict() for figure in part.figures],
            }
            for part in parts
        },
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.gpu",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="cuda (default), cuda:1, or cpu")
    parser.add_argument("--scale", choices=("full", "small"), default="full", help="small: tiny sizes, to try it out")
    parser.add_argument("--only", choices=tuple(LIMITS_S), help="one part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
