"""`python -m perf.core`: what the cache saves, in one process and one run, against an honest recompute.

The paper's model (8 layers, 4 heads x 128, float32), a history of 6,400 and 64 rows to compute on a visit: 32 new
events and 32 candidates. Three ways to the same scores, in turn: from the cache, recomputed by the same engine, and
recomputed by a plain dense torch implementation of the same layer (`models/dense_attention.py`), which keeps the ratio
honest. Beside them the bare matrix products of a cached visit, which are what it costs at the least.

All run on the engine's compute stream: OpenMP slows down where several threads of a process have teams of their own.
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
from torch import nn
from tqdm import tqdm

from mtserve_backend.cache.history import Tokens
from mtserve_backend.config import Config
from mtserve_backend.models.contract import Rows
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.ranking import RankAnswer, RankRequest
from mtserve_backend.startup import build_engine
from mtserve_backend.steps import WaveReport
from perf.environment import environment
from perf.paper_model import CONFIG, write_paper_model

CACHED_VISITS_A_ROUND = 5
USER = 1
PAGE_TOKENS = 256
PRODUCTS_GOAL = 1.25


class Measurement:
    """One growing user; each round visits it cached a few times, and once each in the two other ways."""

    def __init__(self, folder: Path, history: int, new: int, candidates: int, rounds: int, threads: int, seed: int):
        write_paper_model(folder, seed)
        room = history + new * (CACHED_VISITS_A_ROUND * (rounds + 1) + 1)
        knobs = Config(
            page_tokens=PAGE_TOKENS,
            device_cache=f"{room + 2 * PAGE_TOKENS} tokens",
            onload_buffer="0 pages",
            host_cache=f"{room + 1024} tokens",
            threads=threads,
        )
        self.engine = build_engine(knobs, folder)
        self.model = HSTU(CONFIG)
        inner = CONFIG.heads * CONFIG.head_dim
        self.inputs, self.outputs = nn.Linear(CONFIG.hidden, 4 * inner), nn.Linear(inner, CONFIG.hidden)
        self.pages = torch.randn(CONFIG.layers, -(-room // PAGE_TOKENS), 2, CONFIG.heads, PAGE_TOKENS, CONFIG.head_dim)
        self.reports: list[WaveReport] = []
        self.engine.observe = self.reports.append
        rng = np.random.default_rng(seed)
        self.items = rng.integers(0, CONFIG.items, room)
        self.actions = rng.integers(0, CONFIG.actions, room).astype(np.int32)
        self.candidates = rng.integers(0, CONFIG.items, candidates)
        self.length, self.new, self.rounds = history, new, rounds
        self.seconds: dict[str, list[float]] = {"cached": [], "products": [], "recompute": [], "dense": []}
        self.difference = 0.0

    def run(self) -> None:
        self._visit(USER)
        for number in tqdm(range(self.rounds + 1), desc="rounds", file=sys.stderr):
            measured: dict[str, list[float]] = {"cached": [], "products": []}
            for _ in range(CACHED_VISITS_A_ROUND):
                self.length += self.new
                seconds, scores = _timed(lambda: self._visit(USER))
                measured["cached"].append(seconds)
                measured["products"].append(_timed(lambda: self._on_the_compute_stream(self._products))[0])
            cached_reports = len(self.reports)
            seconds, expected = _timed(lambda: self._visit(None))
            del self.reports[cached_reports:]
            measured["recompute"] = [seconds]
            measured["dense"] = [_timed(lambda: self._on_the_compute_stream(self._dense))[0]]
            self.difference = max(self.difference, float(np.abs(scores - expected).max() / np.abs(expected).max()))
            if number:  # the first round warms caches and allocators
                for name, values in measured.items():
                    self.seconds[name] += values
            else:
                self.reports.clear()

    def _visit(self, user: int | None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Nobody's keys are kept, so nobody's history is recomputed, as in `cache_mode: recompute`."""
        tokens = Tokens(0, self.items[: self.length], self.actions[: self.length])
        (answer,) = self.engine.serve([RankRequest(user, tokens, self.candidates)])
        if not isinstance(answer, RankAnswer):
            raise answer
        return answer.scores

    def _on_the_compute_stream(self, work: Callable[[], None]) -> None:
        stream = self.engine.streams.compute
        stream.submit(work)
        stream.record().wait(timeout_s=600)

    @torch.inference_mode()
    def _products(self) -> None:
        """The matrix products of a cached visit and nothing else, over pages laid out as the engine's are."""
        rows = self.new + len(self.candidates)
        x, queries = torch.randn(rows, CONFIG.hidden), torch.randn(CONFIG.heads, rows, CONFIG.head_dim)
        scores, attended = torch.empty(CONFIG.heads, rows, PAGE_TOKENS), torch.zeros_like(queries)
        for keys_and_values in self.pages:
            torch.addmm(self.inputs.bias, x, self.inputs.weight.t())
            for keys, values in keys_and_values[: -(-self.length // PAGE_TOKENS)]:
                torch.bmm(queries, keys.transpose(1, 2), out=scores)
                attended.baddbmm_(scores, values)
            torch.addmm(self.outputs.bias, attended.view(rows, -1), self.outputs.weight.t())

    @torch.inference_mode()
    def _dense(self) -> None:
        """As many rows as the recompute has, through the same layers, with the textbook attention."""
        items = torch.from_numpy(np.concatenate((self.items[: self.length], self.candidates)))
        actions = torch.from_numpy(np.concatenate((self.actions[: self.length], np.zeros_like(self.candidates))))
        rows = Rows(items, actions, torch.arange(len(items)), ())
        outputs = self.model.encode(self.model.embed(rows), DenseAttention(1, len(rows), CONFIG.heads))
        self.model.score(outputs[-len(self.candidates) :], torch.from_numpy(self.candidates))

    def result(self) -> dict[str, Any]:
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        steps = {
            name: statistics.median(1e3 * report.steps.seconds[name] for report in self.reports)
            for name in self.reports[0].steps.seconds
        }
        return {
            "cached_speedup": medians["recompute"] / medians["cached"],
            "cached_over_products": medians["cached"] / medians["products"],
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
        measurement.engine.close(10)
    print(
        f"history {arguments.history:,}, {arguments.new} new events and {arguments.candidates} candidates, "
        f"{CONFIG.layers} layers x {CONFIG.heads} heads x {CONFIG.head_dim}, float32, {arguments.threads} threads"
    )
    for name, median in result["median_ms"].items():
        low, high = result["spread_ms"][name]
        print(f"  {name:<10} {median:9.1f} ms   ({low:.1f} .. {high:.1f})")
    print(f"cached_speedup        {result['cached_speedup']:.1f}   (recompute / cached)")
    ratio = result["cached_over_products"]
    verdict = "met" if ratio <= PRODUCTS_GOAL else "MISSED"
    print(f"cached_over_products  {ratio:.2f}   (goal: at most {PRODUCTS_GOAL:g}, {verdict})")
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
    parser.add_argument("--history", type=int, default=6400, metavar="N", help="events known at first (default: 6400)")
    parser.add_argument("--new", type=int, default=32, metavar="N", help="new events of a visit (default: 32)")
    parser.add_argument("--candidates", type=int, default=32, metavar="N", help="candidates (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds after a warm-up one")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="compute threads (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
