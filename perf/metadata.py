"""`python -m perf.metadata`: what the cache's bookkeeping costs a request.

Three measurements.

1. The manager's calls for one request while it knows 10 thousand to 10 million users, its pools full, so that requests
   evict. Goal: flat within a factor of 2.
2. The steps of Algorithm 1 that are metadata (1, 2, 3, 6 and 7) in a whole engine with an empty model: 8 requests at a
   time, 100,000 users known, histories of 6,400, the paper's geometry. Goal: below 1 ms together.
3. The submission of one user's chunk to the offload stream. Goal: below 0.1 ms.

The second is measured with the copying threads held back until the batch is answered, and again with them running:
states as small as these are copied so fast that the threads ask for Python's interpreter all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.environment import environment
from perf.metadata_steps import BATCH, HISTORY, MEANINGS, METADATA_STEPS, MetadataEngine, measure_offload, measure_steps
from perf.metadata_users import CALLS, flatness, measure_users

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
FLAT_WITHIN, STEPS_GOAL_MS, OFFLOAD_GOAL_MS = 2.0, 1.0, 0.1


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    report: dict[str, Any] = {}
    if arguments.only in (None, "steps"):
        report |= _steps(arguments)
    if arguments.only in (None, "users"):
        report |= _users(arguments)
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key != "json"}
        report |= {"settings": settings, "environment": environment()}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _users(arguments: argparse.Namespace) -> dict[str, Any]:
    sizes = (2_000, 20_000) if arguments.quick else arguments.users
    requests = 500 if arguments.quick else arguments.requests
    print(
        f"{'users known':>12}{''.join(f'{name:>10}' for name in CALLS)}{'together':>10}{'p99':>8}   microseconds",
        end="",
    )
    print(f"{'evictions':>11}{'bytes/user':>12}{'full gc':>12}{'as served':>12}")
    rows: list[dict[str, Any]] = []
    for row in measure_users(sizes, requests, arguments.seed):
        rows.append(row)
        print_users(row)
    ratio = flatness(rows)
    verdict = "met" if ratio <= FLAT_WITHIN else "MISSED"
    print(f"slowest size over the smallest: {ratio:.2f} (goal: at most {FLAT_WITHIN:g}, {verdict})\n")
    return {"users": rows, "flatness": ratio}


def print_users(row: dict[str, Any]) -> None:
    if "skipped" in row:
        print(f"{row['users']:>12,}  left out: {row['skipped']}")
        return
    medians = "".join(f"{row['median_us'][name]:>10.1f}" for name in CALLS)
    print(
        f"{row['users']:>12,}{medians}{row['total_us']['median']:>10.1f}{row['total_us']['p99']:>8.0f}"
        f"{row['evictions_per_request']:>11.2f}{row['bytes_per_user']:>12,.0f}{row['full_collection_ms']:>9,.0f} ms"
        f"{row['full_collection_frozen_ms']:>9,.1f} ms"
    )


def _steps(arguments: argparse.Namespace) -> dict[str, Any]:
    bystanders = 1_000 if arguments.quick else arguments.bystanders
    rounds = 5 if arguments.quick else arguments.rounds
    load_average = round(os.getloadavg()[0], 1)
    engine = MetadataEngine(bystanders, arguments.host_memory, arguments.seed)
    try:
        rows, offload = measure_steps(engine, rounds), measure_offload(engine, rounds)
        known = len(engine.engine.manager.users)
    finally:
        engine.close()
    print(f"{BATCH} requests, histories of {HISTORY:,}, {known:,} users known, host memory {arguments.host_memory}")
    for row in rows:
        print_steps(row)
    worst = max((row["metadata_ms"] for row in rows if not row["copying_beside"]), key=lambda ms: ms["median"])
    print(
        f"\nmetadata steps, slowest kind of batch: {worst['median']:.2f} ms, at best {worst['fastest']:.2f} "
        f"({_goal(worst['median'], STEPS_GOAL_MS)}; load average {load_average} on {os.cpu_count()} cores)"
    )
    print(
        f"offload of a user's chunk submitted in {offload['median']:.3f} ms, at best {offload['fastest']:.3f} "
        f"({_goal(offload['median'], OFFLOAD_GOAL_MS)})\n"
    )
    meanings = {str(number): meaning for number, meaning in MEANINGS.items()}
    return {
        "steps": rows,
        "steps_worst_ms": worst,
        "load_average": load_average,
        "offload_ms": offload,
        "known": known,
        "meanings": meanings,
    }


def print_steps(row: dict[str, Any]) -> None:
    beside = ", copying threads beside" if row["copying_beside"] else ""
    print(f"\n  guests on the {row['guests']}, {row['sent']}{beside}: median (at best), milliseconds")
    for number, (name, median) in enumerate(row["steps_median_ms"].items(), start=1):
        mark = "*" if number in METADATA_STEPS else " "
        print(f"  {mark} {name:<32}{median:>8.3f} ({row['steps_fastest_ms'][name]:.3f})   {MEANINGS[number]}")
    total = row["metadata_ms"]
    print(f"  * together {total['median']:>30.3f} ({total['fastest']:.3f})   90 %: {total['p90']:.3f}")


def _goal(value: float, goal: float) -> str:
    return f"goal: below {goal:g} ms, {'met' if value < goal else 'MISSED'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.metadata",
        description=__doc__,
        epilog="example: python -m perf.metadata --json metadata.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--users", type=int, nargs="+", default=SIZES, metavar="N",
        help="numbers of users (default: 10 thousand to 10 million, which take 10 GiB and about five minutes)",
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=20_000, metavar="N", help="timed requests for each number")
    parser.add_argument("--bystanders", type=int, default=100_000, metavar="N", help="users known in the second part")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="batches of each kind in the second part")
    parser.add_argument("--host-memory", choices=("pinned", "pageable"), default="pinned", help="as the knob says")
    parser.add_argument("--only", choices=("users", "steps"), help="one part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few users and rounds: seconds, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
