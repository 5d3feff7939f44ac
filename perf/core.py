"""`python -m perf.core`: what the cache saves, without a server, against an honest recompute and a floor."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from perf.lab.command import Command, Refused, Run, at_least_one, start
from perf.lab.pools import Pools, knobs
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import engines, model_folder
from perf.lab.ways import Ways
from perf.stats import Spread, ratios
from perf.traffic.target import checked
from perf.visits import SyntheticUsers

ABOUT = """\
One user whose history is on the device comes with a few new events and candidates. Four ways to do the work, in turns
in one process: from the cache; recomputed by the same engine; recomputed by a plain dense torch implementation of the
same layers, which keeps the ratio honest; and the bare matrix products of the cached visit, its cost at the least.
Then the cached visit by the size of pages, an engine in a process of its own for each, asked in turns."""
EXAMPLE = "--preset smoke --json core.json"
CACHED_A_ROUND = 5
PRODUCTS_AIM = 1.25
ENCODE = 7  # step 8


@dataclass(frozen=True)
class Sizes:
    """`rounds`: of five cached visits and one of the other ways each. `pages`: their sizes; so many visits of each."""

    history: int
    rounds: int
    pages: tuple[int, ...]
    visits: int


SIZES = {
    "smoke": Sizes(400, 2, (16, 64), 3),
    "cpu": Sizes(6_400, 5, (32, 64, 128, 256, 512), 15),
}


@dataclass
class Found:
    """Seconds of each way, the largest difference of scores over the largest score, and core steps by size of pages."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    steps_ms: list[list[float]] = field(default_factory=list)
    difference: float = 0.0
    pages_ms: dict[int, list[float]] = field(default_factory=dict)

    def note(self, way: str, seconds: float) -> None:
        self.seconds.setdefault(way, []).append(seconds)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="so many times the rounds")
    parser.add_argument("--only", choices=("ways", "pages"), help="one part: the four ways, or the sizes of pages")


def _measure(run: Run) -> None:
    if run.preset.size not in SIZES:
        raise Refused("perf.core measures the CPU's path: take preset cpu or smoke; a GPU's is perf.gpu's")
    found = Found()
    run.at_the_end(lambda: _conclude(run, found))
    if run.arguments.only in (None, "ways"):
        _measure_ways(run, found)
    if run.arguments.only in (None, "pages"):
        _measure_pages(run, found)


def _measure_ways(run: Run, found: Found) -> None:
    sizes = SIZES[run.preset.size]
    rounds = sizes.rounds * run.arguments.times
    visits = CACHED_A_ROUND * (rounds + 1)
    with (
        model_folder(run.preset.model, run.seed) as folder,
        closing(Ways(run.preset, folder, sizes.history, visits, run.seed)) as ways,
        closing(run.bar("rounds", rounds + 1)) as bar,
    ):
        for number in range(rounds + 1):
            # What the first round finds is dropped: caches and allocators are cold.
            kept = found if number else Found()
            ways.reports.clear()
            for _ in range(CACHED_A_ROUND):
                seconds, scores = ways.cached()
                kept.note("from the cache", seconds)
                kept.note("bare products", ways.products())
            kept.steps_ms += [[1e3 * each for each in report.steps.seconds.values()] for report in ways.reports]
            seconds, expected = ways.recomputed()
            kept.note("recomputed", seconds)
            kept.note("recomputed plainly", ways.dense())
            found.difference = max(found.difference, float(np.abs(scores - expected).max() / np.abs(expected).max()))
            bar.update()


def _measure_pages(run: Run, found: Found) -> None:
    sizes, people = SIZES[run.preset.size], SyntheticUsers(run.preset.model.items, run.preset.model.actions, run.seed)
    visits = sizes.visits * run.arguments.times
    room = sizes.history + run.preset.new * (visits + 2)
    models = {}
    for page in sizes.pages:
        preset = replace(run.preset, page_tokens=page)
        models[str(page)] = knobs(preset, "hierarchical", Pools(room + 2 * page, 0, room, 1))
    with (
        model_folder(run.preset.model, run.seed) as folder,
        engines(folder, models, run.preset.device) as targets,
        closing(run.bar("pages", (visits + 2) * len(models))) as bar,
    ):
        for number in range(-2, visits):
            new = sizes.history if number == -2 else run.preset.new
            visit = people.visit(1, new, run.preset.candidates)
            for name, target in targets.items():
                steps = checked(target.serve([visit])).steps
                if number >= 0 and steps is not None:
                    found.pages_ms.setdefault(int(name), []).append(steps.ms[ENCODE])
                bar.update()


def _conclude(run: Run, found: Found) -> None:
    if found.seconds:
        _conclude_ways(run, found)
    if found.pages_ms:
        _conclude_pages(run, found)


def _conclude_ways(run: Run, found: Found) -> None:
    rows: list[list[Cell]] = []
    for way, seconds in found.seconds.items():
        spread = Spread.of([1e3 * each for each in seconds])
        rows.append([way, spread.count, spread.median, spread.low, spread.high])
        run.figures.append(figure(way, spread, "ms"))
    names = ("median", "lower quartile", "upper quartile")
    columns = [Column(name="way"), Column(name="visits"), *(Column(name=name, unit="ms", digits=2) for name in names)]
    length = SIZES[run.preset.size].history
    note = f"{run.preset.new} new events and {run.preset.candidates} candidates a visit"
    title = f"Ways to the scores of a visit, history {length:,} and growing"
    run.tables.append(Table(key="ways", title=title, columns=columns, rows=rows, note=note))
    cached, products = found.seconds["from the cache"], found.seconds["bare products"]
    around = [sum(steps) - steps[ENCODE] for steps in found.steps_ms]
    recomputed, plainly = found.seconds.get("recomputed", []), found.seconds.get("recomputed plainly", [])
    run.figures += [
        figure("from the cache over bare products", ratios(cached, products), "x", aim=run.aim(PRODUCTS_AIM)),
        figure("from the cache: all steps but the layers", Spread.of(around), "ms"),
        figure("scores: largest difference over the largest score", 1e6 * found.difference, "ppm", aim=10),
    ]
    if recomputed and plainly:
        run.figures += [
            figure("recomputed over from the cache", ratios(recomputed, cached), "x", "higher"),
            figure("recomputed over recomputed plainly", ratios(recomputed, plainly), "x"),
        ]


def _conclude_pages(run: Run, found: Found) -> None:
    spreads = {page: Spread.of(values) for page, values in sorted(found.pages_ms.items())}
    names = ("median", "lower quartile", "upper quartile")
    columns = [Column(name="tokens in a page"), Column(name="visits")]
    columns += [Column(name=name, unit="ms", digits=2) for name in names]
    rows: list[list[Cell]] = [[page, own.count, own.median, own.low, own.high] for page, own in spreads.items()]
    run.tables.append(
        Table(key="pages", title="Core step of a cached visit by size of pages", columns=columns, rows=rows)
    )
    run.figures += [figure(f"pages of {page}: core step", own, "ms") for page, own in spreads.items()]
    series = Series(
        label="core step",
        x=[f"{page}" for page in spreads],
        y=[own.median for own in spreads.values()],
        low=[own.low for own in spreads.values()],
        high=[own.high for own in spreads.values()],
    )
    title = "Core step by size of pages"
    run.plots.append(
        Plot(key="pages", title=title, kind="bars", x_label="tokens in a page", y_label="ms", series=[series])
    )


COMMAND = Command("core", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
