"""`python -m perf.load`: the real perf_analyzer against a real server: sweeps over concurrency and request rate."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from perf import perf_analyzer
from perf.lab.command import Command, Run, at_least_one, start
from perf.lab.pools import Pools, knobs
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import model_folder
from perf.perf_analyzer import Report
from perf.perf_inputs import Workload, write
from perf.stats import Spread
from perf.traffic.server import serving

ABOUT = """\
perf_analyzer (found, or fetched once) drives the recomputing and the hierarchical model of one server in turns: so many
streams at once (concurrency), and so many requests a second (rate). Within a stream a user's history grows: the first
request brings a whole one, later ones what is new. Each stream is a new user: its first request is computed in full."""
EXAMPLE = "--preset smoke --json load.json"
MODES = ("recompute", "hierarchical")
# One window of so many requests counts as a measurement, however it varies: this command repeats and says the spread.
WINDOW = ("--measurement-mode=count_windows", "--stability-percentage=1000000")
LIMIT_S = 300.0
# perf_analyzer keeps its streams open, and Triton counts the wait for an answer as idle: a server so slow that it
# exceeds the shipped two seconds would have its streams closed under it.
IDLE_S = 60.0


@dataclass(frozen=True)
class Sizes:
    """`rates`: requests a second, by mode; `steps` of a stream; `requests` of a measurement."""

    concurrency: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    history: tuple[int, int]
    steps: int
    requests: int
    repeats: int


SIZES = {
    "smoke": Sizes((1, 2), {"recompute": (20,), "hierarchical": (20,)}, (100, 200), 10, 20, 1),
    "cpu": Sizes(
        (1, 2, 4, 8), {"recompute": (1, 2, 4), "hierarchical": (2, 5, 10, 20)}, (700, 900), 20, 40, 2
    ),
    "gpu": Sizes(
        (1, 2, 4, 8, 16, 32), {"recompute": (20, 50, 100), "hierarchical": (50, 100, 200)}, (6_000, 6_800), 20, 500, 3
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Level:
    """One point of a sweep. `kind`: "concurrency" or "rate"."""

    kind: str
    mode: str
    value: float


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=at_least_one, metavar="N", help="measurements of each point")
    parser.add_argument("--only", choices=("concurrency", "rate"), help="one sweep")


def _measure(run: Run) -> None:
    sizes, preset = SIZES[run.preset.size], run.preset
    found: dict[Level, list[Report]] = {}
    run.at_the_end(lambda: _conclude(run, found))
    perf_analyzer.ensure()
    levels = [Level("concurrency", mode, value) for value in sizes.concurrency for mode in MODES]
    levels += [Level("rate", mode, value) for mode in MODES for value in sizes.rates[mode]]
    levels = [level for level in levels if run.arguments.only in (None, level.kind)]
    repeats = run.arguments.repeats or sizes.repeats
    streams = Workload(
        streams=16, steps=sizes.steps, items=preset.model.items, actions=preset.model.actions, history=sizes.history,
        new=(max(1, preset.new // 2), preset.new), candidates=(preset.candidates, preset.candidates), delta_share=1.0,
        seed=run.seed,
    )  # fmt: skip
    longest = sizes.history[1] + sizes.steps * preset.new
    users = 2 * max(sizes.concurrency)
    pools = Pools(users * longest, max(sizes.concurrency) * longest, 2 * users * longest, 2 * users)
    models = {mode: knobs(preset, mode, pools) for mode in MODES}
    config = "gpu" if preset.device == "cuda" else "cpu"
    with (
        tempfile.TemporaryDirectory(prefix="mtserve-load-") as scratch,
        model_folder(preset.model, run.seed) as folder,
        serving(folder, models, config, idle_s=IDLE_S) as server,
        closing(run.bar("perf_analyzer", repeats * len(levels))) as bar,
    ):
        inputs = Path(scratch) / "inputs.json"
        write(inputs, streams)
        for _ in range(repeats):
            for level in levels:
                report = perf_analyzer.run(_words(level, server.grpc_url, inputs, sizes.requests), LIMIT_S)
                found.setdefault(level, []).append(report)
                bar.update()


def _words(level: Level, url: str, inputs: Path, requests: int) -> list[str]:
    words = ["-m", level.mode, "-i", "grpc", "-u", url, f"--input-data={inputs}", "--sequence-id-range=1:1000000"]
    words += [*WINDOW, f"--measurement-request-count={requests}"]
    if level.kind == "concurrency":
        return [*words, f"--concurrency-range={int(level.value)}"]
    # As many streams as keep up with the rate; perf_analyzer sends each stream's requests one after the other.
    return [*words, f"--request-rate-range={level.value:g}", "--num-of-sequences=8"]


# --- what came of it -------------------------------------------------------------------------------------------------


def _conclude(run: Run, found: dict[Level, list[Report]]) -> None:
    for kind, label in (("concurrency", "streams at once"), ("rate", "requests a second")):
        own = {level: reports for level, reports in found.items() if level.kind == kind}
        if own:
            run.tables.append(_table(kind, label, own))
            run.plots.append(_plot(kind, label, own))
    for level, reports in found.items():
        at = f"{level.mode}, {level.kind} {level.value:g}"
        run.figures.append(figure(f"{at}: p50", _ms(reports, "p50"), "ms"))
        if level.kind == "concurrency":
            throughput = Spread.of([report.throughput for report in reports])
            run.figures.append(figure(f"{at}: answers a second", throughput, "/s", "higher"))


def _table(kind: str, label: str, found: dict[Level, list[Report]]) -> Table:
    columns = [Column(name=label, digits=0), Column(name="paradigm"), Column(name="requests")]
    columns += [Column(name="answers", unit="/s")]
    columns += [Column(name=name, unit="ms") for name in ("p50", "p95", "p99")]
    rows: list[list[Cell]] = [
        [
            level.value, level.mode, sum(report.requests for report in reports),
            Spread.of([report.throughput for report in reports]).median,
            *(_ms(reports, name).median for name in ("p50", "p95", "p99")),
        ]
        for level, reports in found.items()
    ]  # fmt: skip
    note = "perf_analyzer's own figures; medians of its measurements"
    return Table(key=kind, title=f"perf_analyzer: {label}", columns=columns, rows=rows, note=note)


def _plot(kind: str, label: str, found: dict[Level, list[Report]]) -> Plot:
    series = []
    for mode in MODES:
        own = {level.value: _ms(reports, "p50") for level, reports in found.items() if level.mode == mode}
        series.append(
            Series(
                label=mode, x=list(own), y=[spread.median for spread in own.values()],
                low=[spread.low for spread in own.values()], high=[spread.high for spread in own.values()],
            )
        )  # fmt: skip
    return Plot(
        key=kind, title=f"p50 against {label}, by perf_analyzer", kind="line", x_label=label, y_label="ms",
        series=[item for item in series if item.x], log_x=True, log_y=True,
    )  # fmt: skip


def _ms(reports: list[Report], name: str) -> Spread:
    return Spread.of([report.latency_us[name] / 1e3 for report in reports])


COMMAND = Command("load", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
