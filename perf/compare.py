"""`python -m perf.compare A.json B.json`: is B as good as A? Figure by figure, as far as their noise lets one say."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from perf.lab.result import Figure, Result, ResultError, load
from perf.lab.text import aligned, number

Word: TypeAlias = Literal["same", "better", "worse", "changed", "gone", "new"]
SAME, WORSE, NOT_COMPARABLE = 0, 1, 2
# Measured medians of one machine differ by some per cent from run to run, beyond what quartiles tell.
TOLERANCE = 0.05
# Counts and shares do not depend on the weather; a sliver of a hit ratio is a matter of timing.
COUNT_TOLERANCE = 0.002
ABOUT = """\
Compare two results of one command and preset, A before, B after. A figure is worse (or better) where the values differ
by more than the tolerance and the quartiles of the two do not overlap; a figure without quartiles is a count or a share
and may differ by 0.2 %. Ratios are B over A."""
EPILOG = """\
example: python -m perf.compare docs/results/steps.json steps.json

exit codes: 0 same or better; 1 at least one figure is worse, or gone; 2 not comparable (other command, preset, seed,
settings or machine, an interrupted run, an unreadable file, a wrong command line)"""


class NotComparable(ValueError):
    """The two say nothing about one another; the message says why."""


@dataclass(frozen=True)
class Verdict:
    """Of one figure. `ratio` is the new value over the old one; NaN where there is none."""

    name: str
    before: Figure | None
    after: Figure | None
    ratio: float
    word: Word


def verdict(before: Figure, after: Figure, tolerance: float = TOLERANCE) -> Verdict:
    """Of a figure that both have."""
    ratio = after.value / before.value if before.value else (1.0 if after.value == before.value else math.inf)
    name = before.name
    if math.isnan(before.value) or math.isnan(after.value):
        both = math.isnan(before.value) and math.isnan(after.value)
        return Verdict(name, before, after, math.nan, "same" if both else "changed")
    spreads = [figure.low is not None and figure.high is not None for figure in (before, after)]
    allowed = tolerance if all(spreads) else COUNT_TOLERANCE
    if abs(after.value - before.value) <= allowed * abs(before.value) or (all(spreads) and _overlap(before, after)):
        return Verdict(name, before, after, ratio, "same")
    if before.better == "neither":
        return Verdict(name, before, after, ratio, "changed")
    improved = (after.value > before.value) == (before.better == "higher")
    return Verdict(name, before, after, ratio, "better" if improved else "worse")


def compare(before: Result, after: Result, tolerance: float = TOLERANCE) -> list[Verdict]:
    """Every figure of either, in A's order, then B's new ones."""
    old, new = ({figure.name: figure for figure in result.figures} for result in (before, after))
    shared = [
        verdict(figure, new[name], tolerance) if name in new else Verdict(name, figure, None, math.nan, "gone")
        for name, figure in old.items()
    ]
    return shared + [Verdict(name, None, figure, math.nan, "new") for name, figure in new.items() if name not in old]


def check_comparable(before: Result, after: Result, any_machine: bool = False) -> None:
    """Raises `NotComparable`."""
    for result, name in ((before, "A"), (after, "B")):
        if result.interrupted:
            raise NotComparable(f"{name} was interrupted: measure it again")
        if not result.figures:
            raise NotComparable(f"{name} has no figures")
    for what in ("command", "preset", "seed", "settings"):
        mine, other = getattr(before, what), getattr(after, what)
        if mine != other:
            raise NotComparable(f"the {what} differs: {mine} in A, {other} in B")
    if not any_machine and _machine(before) != _machine(after):
        raise NotComparable(
            f"the machine differs: {_machine(before)} in A, {_machine(after)} in B; measure both on one, or give "
            "--any-machine and mind what ratios then mean"
        )


def exit_code(verdicts: Sequence[Verdict]) -> int:
    return WORSE if any(found.word in ("worse", "gone") for found in verdicts) else SAME


def table(verdicts: Sequence[Verdict]) -> str:
    """For a terminal."""
    rows = [["figure", "A", "quartiles", "B", "quartiles", "B / A", "verdict"]]
    for found in verdicts:
        ratio = "-" if math.isnan(found.ratio) else f"{found.ratio:.3f}"
        word = found.word.upper() if found.word in ("worse", "gone") else found.word
        rows.append([found.name, *_cells(found.before), *_cells(found.after), ratio, word])
    return aligned(rows)


def _cells(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "-", ""
    if figure.low is None or figure.high is None:
        return number(figure.value, figure.unit), ""
    return number(figure.value, figure.unit), f"{number(figure.low, figure.unit)} .. {number(figure.high, figure.unit)}"


def _overlap(before: Figure, after: Figure) -> bool:
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return False
    return before.low <= after.high and after.low <= before.high


def _machine(result: Result) -> str:
    machine = result.machine
    return f"{machine.get('cpu')}, {machine.get('cores')} cores"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        before, after = load(arguments.before), load(arguments.after)
        check_comparable(before, after, arguments.any_machine)
    except (ResultError, NotComparable) as error:
        print(f"compare: {error}", file=sys.stderr)
        return NOT_COMPARABLE
    verdicts = compare(before, after, arguments.tolerance)
    print(f"perf.{before.command}, preset {before.preset}: A is {before.commit}, B is {after.commit}\n")
    print(table(verdicts))
    counts = {word: sum(found.word == word for found in verdicts) for word in ("better", "same", "worse", "gone")}
    print("\n" + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return exit_code(verdicts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.compare",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, metavar="A.json", help="the result to hold on to")
    parser.add_argument("after", type=Path, metavar="B.json", help="the new one")
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, metavar="T", help="of measured figures, relative (default: 0.05)"
    )
    parser.add_argument("--any-machine", action="store_true", help="compare results of different machines, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
