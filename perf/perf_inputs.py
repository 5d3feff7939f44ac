"""Inputs for perf_analyzer: `--input-data` for model hstu, streams of users whose histories grow.

perf_analyzer draws a stream at random for each new sequence and reuses sequence IDs, so an ID meets
another stream's history sooner or later. Every stream therefore begins with a whole history, HISTORY_START =
0, which is right whatever the server knew of that ID; its later steps may be deltas, because one stream runs
under one ID from its first step to its last.

    python -m perf.perf_inputs --streams 8 --steps 5 > inputs.json
    python -m perf.perf_analyzer -- -m hstu -i grpc -u localhost:8001 --input-data inputs.json \\
        --concurrency-range 4 --sequence-id-range 1:1000
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Step = dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class Workload:
    """What the streams look like. Lengths are drawn uniformly from the ranges, both ends included."""

    streams: int = 8
    steps: int = 5
    items: int = 1000
    actions: int = 4
    history: tuple[int, int] = (16, 200)
    """Tokens at the first step."""
    new: tuple[int, int] = (1, 16)
    """Tokens more at each later step."""
    candidates: tuple[int, int] = (1, 32)
    delta_share: float = 0.5
    """Of the later steps, how many send the new tokens only."""
    seed: int = 0


def streams(workload: Workload) -> list[list[Step]]:
    """The streams, each a list of steps."""
    rng = np.random.default_rng(workload.seed)
    return [_stream(workload, rng) for _ in range(workload.streams)]


def document(workload: Workload) -> dict[str, Any]:
    """The whole file, as `--input-data` reads it."""
    return {"data": streams(workload)}


def write(path: Path, workload: Workload) -> None:
    """Write the file."""
    path.write_text(json.dumps(document(workload)), encoding="utf-8")


def _stream(workload: Workload, rng: np.random.Generator) -> list[Step]:
    items = np.zeros(0, dtype=np.int64)
    actions = np.zeros(0, dtype=np.int64)
    steps = []
    for number in range(workload.steps):
        known = len(items)
        more = _draw(rng, workload.history if number == 0 else workload.new)
        items = np.concatenate([items, rng.integers(workload.items, size=more)])
        actions = np.concatenate([actions, rng.integers(workload.actions, size=more)])
        start = known if number > 0 and rng.random() < workload.delta_share else 0
        candidates = rng.integers(workload.items, size=_draw(rng, workload.candidates))
        steps.append(_step(items[start:], actions[start:], start, candidates))
    return steps


def _step(items: Integers, actions: Integers, start: int, candidates: Integers) -> Step:
    """One request. The shapes leave the batch dimension out: perf_analyzer adds it."""
    values = {"HISTORY_ITEMS": items, "HISTORY_ACTIONS": actions, "CANDIDATES": candidates}
    step: Step = {name: {"content": array.tolist(), "shape": [len(array)]} for name, array in values.items()}
    step["HISTORY_START"] = {"content": [start], "shape": [1]}
    return step


def _draw(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1], endpoint=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    default = Workload()
    parser = argparse.ArgumentParser(
        prog="python -m perf.perf_inputs",
        description="Write perf_analyzer's --input-data for model hstu to stdout.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=default.streams, help="different users")
    parser.add_argument("--steps", type=int, default=default.steps, help="visits of each")
    parser.add_argument("--items", type=int, default=default.items, help="item IDs are below this")
    parser.add_argument("--actions", type=int, default=default.actions, help="actions are below this")
    ranges = {
        "history": "tokens at the first visit",
        "new": "tokens more at each later visit",
        "candidates": "candidates a visit",
    }
    for name, text in ranges.items():
        bounds = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, nargs=2, default=bounds, metavar=("LEAST", "MOST"), help=text)
    parser.add_argument(
        "--delta-share",
        type=float,
        default=default.delta_share,
        help="later visits that send new tokens only",
    )
    parser.add_argument("--seed", type=int, default=default.seed, help="the same seed gives the same file")
    options = vars(parser.parse_args(arguments))
    for name in ranges:
        least, most = options[name] = tuple(options[name])
        if not 0 <= least <= most:
            parser.error(f"--{name} {least} {most}: give the least first, from 0 on")
    for name in ("streams", "steps", "items", "actions"):
        if options[name] < 1:
            parser.error(f"--{name} {options[name]}: at least 1")
    json.dump(document(Workload(**options)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
