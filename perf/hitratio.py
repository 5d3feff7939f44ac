"""`python -m perf.hitratio`: how much of the histories a cache finds, with and without the flush of tails."""

from __future__ import annotations

import argparse

from perf.lab import paper
from perf.lab.command import Command, Run, start
from perf.lab.hit_ratios import Simulated, simulate
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.workloads import PAPER_SHARE
from perf.traces.generator import chunks
from perf.traces.shapes import Shape
from perf.traces.statistics import statistics_of

ABOUT = """\
A trace with KuaiRand-1K's published statistics, of hundreds of users, through the cache manager alone: the decisions
are the server's, nothing is computed or copied. At the paper's device capacities and at one for 60% of the tokens,
where at least 99.5% should be found. A hit is a history token whose keys were on the device or on the host; the ratio
is over whole histories, new tokens included."""
EXAMPLE = "--preset smoke --json hitratio.json"
BATCH = 8
GOAL, GOAL_SHARE = 0.995, 0.6
# The paper's capacities, as shares of KuaiRand-1K's tokens, and the share at which the hit ratio is aimed at.
SHARES = (*(PAPER_SHARE * pages / 40_960 for pages in paper.CAPACITY), GOAL_SHARE)
# Where runs without the flush of tails tell what it is worth.
WITHOUT_FLUSH = (PAPER_SHARE, GOAL_SHARE)
# Shares of the trace's 1,000 users.
SCALES = {"smoke": 0.02, "cpu": 0.25, "gpu": 0.25}


def measure(run: Run, scale: float) -> None:
    """Adds the table, figures and plot of all cases; of those that were done, if it is interrupted."""
    simulated: list[Simulated] = []
    run.at_the_end(lambda: _conclude(run, simulated))
    shape = Shape().scaled(scale)
    statistics = statistics_of(chunks(shape, run.seed))
    cases = [(share, True) for share in SHARES] + [(share, False) for share in WITHOUT_FLUSH]
    for share, flush in cases:
        simulated.append(simulate(run, shape, statistics, share, flush, BATCH))


def _conclude(run: Run, found: list[Simulated]) -> None:
    if not found:
        return
    columns = [Column(name="device memory for", unit="%"), Column(name="tails flushed")]
    columns += [Column(name=name, unit="%", digits=2) for name in ("device hits", "total hits", "recomputed", "new")]
    columns.append(Column(name="evictions"))
    rows: list[list[Cell]] = [
        [own.share, "yes" if own.flush else "no", own.device, own.total, own.recomputed, own.new, own.evictions]
        for own in found
    ]
    note = f"batch {BATCH}; of {found[0].tokens:,} history tokens; the share of new ones is out of reach"
    title = "Hit ratios by device capacity, manager alone"
    run.tables.append(Table(key="hits", title=title, columns=columns, rows=rows, origin="counted", note=note))
    for own in found:
        flush = "" if own.flush else ", tails not flushed"
        aim = run.aim(GOAL) if own.share == GOAL_SHARE and own.flush else None
        at = f"device memory for {own.share:.1%}{flush}"
        run.figures.append(figure(f"{at}: total hit ratio", own.total, "%", "higher", aim))
        run.figures.append(figure(f"{at}: device hit ratio", own.device, "%", "higher"))
    flushed = sorted((own for own in found if own.flush), key=lambda own: own.share)
    x: list[float | str] = [own.share for own in flushed]
    series = [
        Series(label="in all", x=x, y=[own.total for own in flushed], origin="counted"),
        Series(label="on the device", x=x, y=[own.device for own in flushed], origin="counted"),
    ]
    run.plots.append(
        Plot(
            key="hits", title=title, kind="line", x_label="device memory, as a share of all users' tokens",
            y_label="share of history tokens", series=series,
        )
    )  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, metavar="S", help="of the trace: the share of 1,000 users")


COMMAND = Command(
    "hitratio", ABOUT, EXAMPLE, lambda run: measure(run, run.arguments.scale or SCALES[run.preset.size]), _options
)

if __name__ == "__main__":
    start(COMMAND)
