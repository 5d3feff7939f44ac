"""`python -m perf.core`: what the cache saves, in one process and one run, against an honest recompute.

The paper's model (8 layers, 4 heads x 128, float32), a history of 4,096 and 64 rows to compute on a visit: 32 new
events and 32 candidates. Three ways to the same scores, in turn: from the cache, recomputed by the same engine, and
recomputed by a plain dense torch implementation of the same layer (`models/dense_attention.py`), which keeps the ratio
honest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.engine import Engine
from mtserve_backend.models import weights
from mtserve_backend.models.contract import RankingModel, Rows
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from mtserve_backend.steps import WaveReport
from perf.environment import environment
from perf.paper_model import CONFIG, write_paper_model

CACHED_VISITS_A_ROUND = 5
USER = 1


class Measurement:
    """One growing user; each round visits it cached a few times, and once each in the two other ways."""

    def __init__(self, folder: Path, history: int, new: int, candidates: int, rounds: int, threads: int, seed: int):
        write_paper_model(folder, seed)
        room = history + new * (CACHED_VISITS_A_ROUND * (rounds + 1) + 1)
        knobs = Config(
            page_tokens=256,
            device_cache=f"{room + 2 * 256} tokens",
            onload_buffer="0 pages",
            host_cache=f"{room + 1024} tokens",
            threads=threads,
        )
        self.cached = build_engine(knobs, folder)
        self.recompute = build_engine(knobs.model_copy(update={"cache_mode": "recompute"}), folder)
        self.model: RankingModel = weights.load(folder).model
        self.reports: list[WaveReport] = []
        self.cached.observe = self.reports.append
        rng = np.random.default_rng(seed)
        self.items = rng.integers(0, CONFIG.items, room)
        self.actions = rng.integers(0, CONFIG.actions, room).astype(np.int32)
        self.candidates = rng.integers(0, CONFIG.items, candidates)
        self.length, self.new, self.rounds = history, new, rounds
        self.seconds: dict[str, list[float]] = {"cached": [], "recompute": [], "dense": []}
        self.difference = 0.0

    def run(self) -> None:
        _timed(lambda: self._visit(self.cached))
        for number in tqdm(range(self.rounds + 1), desc="rounds", file=sys.stderr):
            measured: dict[str, list[float]] = {"cached": []}
            for _ in range(CACHED_VISITS_A_ROUND):
                self.length += self.new
                seconds, scores = _timed(lambda: self._visit(self.cached))
                measured["cached"].append(seconds)
            seconds, expected = _timed(lambda: self._visit(self.recompute))
            measured["recompute"] = [seconds]
            seconds, _ = _timed(self._dense)
            measured["dense"] = [seconds]
            self.difference = max(self.difference, float(np.abs(scores - expected).max() / np.abs(expected).max()))
            if number:  # the first round warms caches and allocators
                for name, values in measured.items():
                    self.seconds[name] += values

    def _visit(self, engine: Engine) -> np.ndarray[Any, np.dtype[np.float32]]:
        tokens = Tokens(0, self.items[: self.length], self.actions[: self.length])
        (answer,) = engine.serve([RankRequest(USER, tokens, self.candidates)])
        if not isinstance(answer, RankAnswer):
            raise answer
        return answer.scores

    @torch.inference_mode()
    def _dense(self) -> torch.Tensor:
        """As many rows as the recompute has, through the same layers, with the textbook attention."""
        items = torch.from_numpy(np.concatenate((self.items[: self.length], self.candidates)))
        actions = torch.from_numpy(np.concatenate((self.actions[: self.length], np.zeros_like(self.candidates))))
        rows = Rows(items, actions, torch.arange(len(items)), ())
        outputs = self.model.encode(self.model.embed(rows), DenseAttention(1, len(rows), CONFIG.heads))
        return self.model.score(outputs[-len(self.candidates) :], torch.from_numpy(self.candidates))

    def result(self) -> dict[str, Any]:
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        steps = {
            name: statistics.median(1e3 * report.steps.seconds[name] for report in self.reports)
            for name in self.reports[0].steps.seconds
        }
        return {
            "cached_speedup": medians["recompute"] / medians["cached"],
            "recompute_over_dense": medians["recompute"] / medians["dense"],
            "scores_max_relative_difference": self.difference,
            "median_ms": {name: 1e3 * value for name, value in medians.items()},
            "spread_ms": {name: [1e3 * min(values), 1e3 * max(values)] for name, values in self.seconds.items()},
            "cached_steps_ms": steps,
        }


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="mtserve-core-") as folder:
        measurement = Measurement(
            Path(folder),
            arguments.history,
            arguments.new,
            arguments.candidates,
            arguments.rounds,
            arguments.threads,
            arguments.seed,
        )
        measurement.run()
        result = measurement.result()
        for engine in (measurement.cached, measurement.recompute):
            engine.close(10)
    print(
        f"history {arguments.history:,}, {arguments.new} new events and {arguments.candidates} candidates, "
        f"{CONFIG.layers} layers x {CONFIG.heads} heads x {CONFIG.head_dim}, float32, {arguments.threads} threads"
    )
    for name, median in result["median_ms"].items():
        low, high = result["spread_ms"][name]
        print(f"  {name:<10} {median:9.1f} ms   ({low:.1f} .. {high:.1f})")
    print(f"cached_speedup        {result['cached_speedup']:.1f}   (recompute / cached)")
    print(f"recompute_over_dense  {result['recompute_over_dense']:.2f}   (recompute / plain dense torch)")
    print(f"scores differ by at most {result['scores_max_relative_difference']:.1e} of the largest")
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key != "json"}
        report = {**result, "settings": settings, "environment": environment()}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.core",
        description=__doc__,
        epilog="example: python -m perf.core --json core.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--history", type=int, default=4096, metavar="N", help="events known at first (default: 4096)")
    parser.add_argument("--new", type=int, default=32, metavar="N", help="new events of a visit (default: 32)")
    parser.add_argument("--candidates", type=int, default=32, metavar="N", help="candidates (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds after a warm-up one")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="compute threads (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
