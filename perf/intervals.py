"""`python -m perf.intervals`: the paper's Figure 4, how long it is between a user's requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perf.lab.command import Command, Run, start
from perf.lab.distributions import steps_of
from perf.lab.result import Cell, Column, Plot, Table, figure
from perf.traces.generator import requests
from perf.traces.reader import Trace
from perf.traces.request import Request
from perf.traces.shapes import SHAPES

ABOUT = """\
The distribution of the time between a user's requests, on made-up traces like the paper's two, or in a trace file:
how many return soon, and how long the others stay away: Figure 4. The paper shows the shape, and no number of it."""
EXAMPLE = "--preset smoke --json intervals.json\n         python -m perf.intervals --trace kuairand-1k.trace"
SCALES = {"smoke": 0.02, "cpu": 0.2, "gpu": 1.0}
BOUNDS_S = (60, 120, 300, 900, 3_600, 4 * 3_600, 86_400, 7 * 86_400)
NAMES = ("a minute", "2 minutes", "5 minutes", "15 minutes", "an hour", "4 hours", "a day", "a week")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="of perf.traces, in place of made-up ones")


def _measure(run: Run) -> None:
    found: dict[str, npt.NDArray[np.float64]] = {}
    run.at_the_end(lambda: _conclude(run, found))
    if run.arguments.trace:
        with Trace(run.arguments.trace) as trace:
            found[run.arguments.trace.stem] = intervals(trace.requests())
        return
    for name, (shape, _) in SHAPES.items():
        found[name] = intervals(requests(shape.scaled(SCALES[run.preset.size]), run.seed))


def intervals(trace: Iterable[Request]) -> npt.NDArray[np.float64]:
    """Seconds between each request and the one before of the same user."""
    last: dict[int, float] = {}
    gaps: list[float] = []
    for request in trace:
        before = last.get(request.user)
        if before is not None:
            gaps.append(request.time - before)
        last[request.user] = request.time
    return np.asarray(gaps)


def _conclude(run: Run, found: dict[str, npt.NDArray[np.float64]]) -> None:
    found = {name: gaps for name, gaps in found.items() if len(gaps)}
    if not found:
        return
    columns = [
        Column(name="trace"),
        Column(name="returns"),
        *(Column(name=f"within {name}", unit="%") for name in NAMES),
    ]
    columns += [Column(name=name, unit="s", digits=0) for name in ("median", "99 %")]
    rows: list[list[Cell]] = []
    for name, gaps in found.items():
        shares = [float((gaps <= bound).mean()) for bound in BOUNDS_S]
        rows.append([name, len(gaps), *shares, float(np.median(gaps)), float(np.percentile(gaps, 99))])
        run.figures.append(figure(f"{name}: returns within 5 minutes", shares[2], "%", "neither"))
        run.figures.append(figure(f"{name}: median time between requests", float(np.median(gaps)), "s", "neither"))
    title = "Time between a user's requests"
    run.tables.append(Table(key="intervals", title=title, columns=columns, rows=rows, origin="counted"))
    series = [steps_of(name, gaps.tolist()) for name, gaps in found.items()]
    run.plots.append(
        Plot(
            key="intervals",
            title=title,
            kind="steps",
            x_label="seconds",
            y_label="share of returns",
            series=series,
            log_x=True,
        )
    )


COMMAND = Command("intervals", ABOUT, EXAMPLE, _measure, _options, uses_device=False)

if __name__ == "__main__":
    start(COMMAND)
