"""`python -m perf.hitratio`: how much of the histories a cache finds, with and without the tail flush.

A made-up trace with the statistics of KuaiRand-1K (`perf/traces/generator.py`) goes through the cache manager
alone: the decisions are the server's, nothing is computed or copied. A hit is a history token whose keys were on the
device or on the host; the ratio is over whole histories, new tokens included, so the share of new tokens is out of
reach. The host holds everything; the device holds a share of what all users have at the end: 60 % (the goal), and what
the paper's 40,960 pages are of KuaiRand-1K (11 %).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mtserve_backend.cache.records import Counters, Geometry
from perf.environment import environment
from perf.manager_replay import ManagerReplay, ReplayOptions
from perf.stats import ratio
from perf.traces.generator import chunks, requests
from perf.traces.published import KUAIRAND_1K, compare, table
from perf.traces.shapes import Shape
from perf.traces.statistics import Statistics, statistics_of

GOAL, GOAL_SHARE = 0.995, 0.6
PAPER_SHARE = 40_960 * 32 / 11_700_000
PAPER = "the paper, batch 8: device 64.36 %, total 98.59 %"


def replay(shape: Shape, statistics: Statistics, share: float, arguments: argparse.Namespace, flush: bool) -> Counters:
    """One run of the trace through a new manager."""
    page, chunk = arguments.page_tokens, arguments.chunk_tokens
    geometry = Geometry(
        page_tokens=page,
        chunk_tokens=chunk,
        device_pages=max(1, round(share * statistics.last_lengths_total / page)),
        onload_pages=-(-arguments.batch * shape.longest // page),
        host_chunks=statistics.last_lengths_total // chunk + shape.users,
    )
    options = ReplayOptions(arguments.batch, flush, arguments.transfer_delay)
    name = f"device {share:.0%}, {'with' if flush else 'without'} flush"
    trace = tqdm(requests(shape, arguments.seed), desc=name, total=statistics.requests, file=sys.stderr, mininterval=1)
    return ManagerReplay(geometry, options, shape.longest).run(trace)


def figures(counters: Counters) -> dict[str, Any]:
    """Shares of all history tokens, and what explains them."""
    total = counters.found_device + counters.found_host + counters.recomputed + counters.new
    return {
        "device_hit_ratio": ratio(counters.found_device, total),
        "total_hit_ratio": counters.hit_ratio(),
        "recomputed_share": ratio(counters.recomputed, total),
        "new_share": ratio(counters.new, total),
        "history_tokens": total,
        "counters": asdict(counters),
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    scale = 0.02 if arguments.quick else arguments.scale
    shape = Shape().scaled(scale)
    statistics = statistics_of(chunks(shape, arguments.seed))
    print("\n".join(table(compare(statistics, KUAIRAND_1K, scale))))
    runs: list[dict[str, Any]] = []
    for share in arguments.device_share:
        for flush in (True, False):
            begin = time.perf_counter()
            result = figures(replay(shape, statistics, share, arguments, flush))
            seconds = time.perf_counter() - begin
            runs.append({"device_share": share, "tail_flush": flush, **result, "seconds": seconds})
    print_runs(runs)
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key != "json"}
        report = {
            "trace": {"shape": asdict(shape), "statistics": statistics.as_dict(), "published": KUAIRAND_1K.figures()},
            "runs": runs,
            "settings": settings,
            "environment": environment(),
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def print_runs(runs: Sequence[dict[str, Any]]) -> None:
    columns = f"{'device':>10}{'total':>10}{'recomputed':>12}{'new':>8}{'evicted':>9}"
    print(f"\n{'device memory for':<20}{'tail flush':<12}{columns}")
    for run in runs:
        print(
            f"{run['device_share']:<20.1%}{'yes' if run['tail_flush'] else 'no':<12}{run['device_hit_ratio']:>10.2%}"
            f"{run['total_hit_ratio']:>10.2%}{run['recomputed_share']:>12.3%}{run['new_share']:>8.2%}"
            f"{run['counters']['device_evictions']:>9,}"
        )
        if run["device_share"] == GOAL_SHARE and run["tail_flush"]:
            print(f"{'':<20}goal {GOAL:.1%} in total: {'met' if run['total_hit_ratio'] >= GOAL else 'MISSED'}")
    print(f"({PAPER})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.hitratio",
        description=__doc__,
        epilog="example: python -m perf.hitratio --json hitratio.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scale", type=float, default=0.25, metavar="S", help="share of the 1,000 users, each in full (default: 0.25)"
    )
    parser.add_argument(
        "--device-share", type=float, nargs="+", default=[GOAL_SHARE, PAPER_SHARE], metavar="S",
        help="device memory, as a share of all users' last histories (default: 0.6 and the paper's 0.112)",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="requests in a batch (default: 8)")
    parser.add_argument("--page-tokens", type=int, default=32, metavar="N")
    parser.add_argument("--chunk-tokens", type=int, default=1024, metavar="N")
    parser.add_argument(
        "--transfer-delay", type=int, default=0, metavar="N",
        help="requests served between a transfer's start and its end (default: 0)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="20 users: seconds, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
