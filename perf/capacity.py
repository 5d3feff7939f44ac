"""`python -m perf.capacity`: the paper's Table 6 and Figure 5, latency and hit ratios by device capacity."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass, replace

from perf import hitratio
from perf.lab import paper
from perf.lab.command import Command, Run, at_least_one, start
from perf.lab.pools import knobs
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import engines, model_folder
from perf.lab.workloads import WORKLOADS, Workload
from perf.stats import mean_spread
from perf.traffic.dealer import Dealer
from perf.traffic.loops import interleaved, warm
from perf.traffic.record import Book, Record, summarize
from perf.traffic.target import checked

ABOUT = """\
Two halves. Hit ratios by device capacity, as `perf.hitratio` finds them with hundreds of users. And latency: one
hierarchical engine for each capacity and a recomputing one, asked in turns with the same batches of 8 of few users:
Table 6 and Figure 5. A hit is a history token whose keys were found; the ratio is over whole histories, new tokens
included."""
EXAMPLE = "--preset smoke --json capacity.json"
BATCH = 8
RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Sizes:
    """`scale`: of the simulated trace's 1,000 users. The others are of the measured engines."""

    scale: float
    mean_length: int
    batches: int
    shares: tuple[float, ...]


SIZES = {
    "smoke": Sizes(0.02, 200, 3, (0.3, 0.9)),
    "cpu": Sizes(0.15, 1_600, 8, (0.2, 0.35, 0.5, 0.7, 0.9)),
    "gpu": Sizes(0.25, 6_375, 100, (0.056, 0.084, 0.112, 0.14, 0.168)),
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("hits", "latency"), help="one half")
    parser.add_argument("--scale", type=float, metavar="S", help="of the simulated trace: the share of 1,000 users")
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="so many times the batches")


def _measure(run: Run) -> None:
    found: dict[str, list[Record]] = {}
    run.at_the_end(lambda: _conclude_latency(run, found))
    if run.arguments.only in (None, "hits"):
        hitratio.measure(run, run.arguments.scale or SIZES[run.preset.size].scale)
    if run.arguments.only in (None, "latency"):
        _measure_latency(run, found)


def _workload(run: Run) -> Workload:
    workload = WORKLOADS[run.preset.size]["kuairand"]
    return replace(workload, mean_length=SIZES[run.preset.size].mean_length)


def _measure_latency(run: Run, found: dict[str, list[Record]]) -> None:
    sizes, preset, workload = SIZES[run.preset.size], run.preset, _workload(run)
    part = workload.window(preset, run.seed)
    models = {RECOMPUTE: knobs(preset, RECOMPUTE, workload.pools(part, BATCH))}
    for share in sizes.shares:
        models[f"{share:g}"] = knobs(preset, "hierarchical", workload.pools(part, BATCH, share))
    with model_folder(preset.model, run.seed) as folder, engines(folder, models, preset.device) as targets:
        cached = {name: target for name, target in targets.items() if name != RECOMPUTE}
        with closing(run.bar("warming", len(part.before) * len(cached))) as bar:
            warm(cached, part.before, bar.update)
        book, count = Book(), sizes.batches * run.arguments.times
        with closing(run.bar("batches", count * len(models))) as bar:
            for turn in interleaved(targets, Dealer(part.visits), BATCH, count):
                records = found.setdefault(turn.name, [])
                records.extend(book.records(turn.name, turn.batch, checked(turn.served)))
                bar.update()


# --- what came of it -------------------------------------------------------------------------------------------------


def _conclude_latency(run: Run, found: dict[str, list[Record]]) -> None:
    summaries = {name: summarize(records) for name, records in found.items()}
    base = summaries.pop(RECOMPUTE, None)
    if not summaries:
        return
    columns = [Column(name="device memory for", unit="%"), Column(name="memory", unit="MiB", digits=0)]
    columns += [Column(name="latency", unit="ms"), Column(name="waiting for loads", unit="ms")]
    columns += [Column(name="over recompute", unit="x", digits=2)]
    columns += [Column(name=name, unit="%", digits=2) for name in ("device hits", "total hits")]
    rows: list[list[Cell]] = []
    tokens = _workload(run).window(run.preset, run.seed).tokens
    for name, own in summaries.items():
        share = float(name)
        waited = [record.steps.waited_ms for record in _batches(found[name]) if record.steps]
        memory = share * tokens * run.preset.token_bytes / 2**20
        over = base.latency.mean / own.latency.mean if base else None
        rows.append(
            [share, memory, 1e3 * own.latency.mean, sum(waited) / len(waited), over, own.device_hits, own.total_hits]
        )
        latency = figure(f"device memory for {share:.0%}: mean latency", mean_spread(own.seconds), "ms", scale=1e3)
        run.figures.append(latency)
    note = f"batch {BATCH}, histories of about {SIZES[run.preset.size].mean_length:,}"
    if base:
        note += f"; recomputing takes {1e3 * base.latency.mean:,.1f} ms"
        run.figures.append(figure("recompute: mean latency", mean_spread(base.seconds), "ms", scale=1e3))
    title = "Latency by device capacity"
    run.tables += [Table(key="capacity", title=title, columns=columns, rows=rows, note=note), paper.capacity()]
    x: list[float | str] = [float(name) for name in summaries]
    spreads = [mean_spread(own.seconds) for own in summaries.values()]
    series = [
        Series(
            label="hierarchical", x=x, y=[1e3 * spread.mean for spread in spreads],
            low=[1e3 * spread.low for spread in spreads], high=[1e3 * spread.high for spread in spreads],
        )
    ]  # fmt: skip
    if base:
        series.append(Series(label="recompute", x=x, y=[1e3 * base.latency.mean] * len(x)))
    run.plots.append(
        Plot(
            key="capacity", title=title, kind="line", x_label="device memory, as a share of all users' tokens",
            y_label="ms", series=series, log_y=True,
        )
    )  # fmt: skip


def _batches(records: list[Record]) -> list[Record]:
    """One record of each."""
    return list({record.batch: record for record in records}.values())


COMMAND = Command("capacity", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
