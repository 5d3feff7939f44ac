"""`python -m perf.paradigms`: the paper's Tables 1 and 5, all paradigms side by side through a real server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from perf.lab import paper
from perf.lab.command import Command, Run, at_least_one, start
from perf.lab.distributions import latency_steps
from perf.lab.presets import PARADIGMS
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.side_by_side import Measured, Round, measure
from perf.lab.workloads import WORKLOADS
from perf.stats import mean_ratio, mean_spread
from perf.traffic.record import by_paradigm

ABOUT = """\
Mean latency, speed-up and hit ratios of recomputing, of a cache on the device only, and of the hierarchical cache, at
batches of 1, 4 and 8, on traces like KuaiRand-1K (also with a model of 4 layers) and like the paper's MT: Tables 1
and 5. The device has room for 60 % of the active users' tokens (gpu presets: the paper's share). Through a real Triton
and gRPC; the three models are asked in turns, one batch at a time; recomputing at every few batches only, because it
keeps nothing and takes long. Latency of a batch: until its last answer."""
EXAMPLE = "--preset smoke --json paradigms.json"
ROUNDS = {
    "smoke": {
        "kuairand": (Round(1, 6), Round(4, 4), Round(8, 6)),
        "mt": (Round(1, 4), Round(4, 3), Round(8, 3)),
        "kuairand, 4 layers": (Round(1, 3), Round(4, 3), Round(8, 3)),
    },
    "cpu": {
        "kuairand": (Round(1, 4, 2), Round(4, 3, 3), Round(8, 6, 3)),
        "mt": (Round(1, 2, 2), Round(4, 2, 2), Round(8, 2, 2)),
        "kuairand, 4 layers": (Round(1, 2, 2), Round(4, 2, 2), Round(8, 2, 2)),
    },
    "gpu": {
        name: (Round(1, 400), Round(4, 100), Round(8, 100)) for name in ("kuairand", "mt", "kuairand, 4 layers")
    },
}  # fmt: skip
# At batch 8 on the trace like KuaiRand-1K.
OVER_RECOMPUTE, OVER_DEVICE, HITS = 20.0, 5.0, 0.995
COLUMNS = [
    Column(name="batch"), Column(name="paradigm"), Column(name="batches"), Column(name="mean", unit="ms"),
    Column(name="p50", unit="ms"), Column(name="p95", unit="ms"), Column(name="over recompute", unit="x", digits=2),
    Column(name="over device", unit="x", digits=2), Column(name="device hits", unit="%", digits=2),
    Column(name="total hits", unit="%", digits=2),
]  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    names = list(WORKLOADS["cpu"])
    parser.add_argument(
        "--only", choices=names, nargs="+", default=names, metavar="TRACE", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="so many times the batches")
    parser.add_argument(
        "--through", choices=("server", "engine"), default="server", help="a real Triton (default), or none"
    )


def _measure(run: Run) -> None:
    found: list[Measured] = []
    run.at_the_end(lambda: _conclude(run, found))
    for name in run.arguments.only:
        rounds = [item.times(run.arguments.times) for item in ROUNDS[run.preset.size][name]]
        measure(run, WORKLOADS[run.preset.size][name], rounds, run.arguments.through, found)


def _conclude(run: Run, found: Sequence[Measured]) -> None:
    for name in dict.fromkeys(measured.workload for measured in found):
        own = [measured for measured in found if measured.workload == name and measured.records]
        if own:
            _conclude_workload(run, name, own)


def _conclude_workload(run: Run, name: str, found: Sequence[Measured]) -> None:
    rows = [row for measured in found for row in _rows(measured)]
    share = WORKLOADS[run.preset.size][name].device_share
    note = f"the device has room for {share:.0%} of the users' tokens; means' ratios"
    run.tables.append(Table(key=name, title=f"Paradigms on the trace {name}", columns=COLUMNS, rows=rows, note=note))
    run.tables.append(paper.paradigms(name))
    for measured in found:
        _figures(run, measured)
    run.plots += [_bars(name, found), _hits(name, found)]
    last = by_paradigm(found[-1].records, PARADIGMS)
    title = f"Latency of batches of {found[-1].size}, {name}"
    run.plots.append(latency_steps(f"{name} cdf", title, {mode: own.seconds for mode, own in last.items()}))


def _rows(measured: Measured) -> list[list[Cell]]:
    summaries = by_paradigm(measured.records, PARADIGMS)
    means = {mode: own.latency.mean for mode, own in summaries.items()}
    rows: list[list[Cell]] = []
    for mode, own in summaries.items():
        over = [means[base] / own.latency.mean if base in means else None for base in PARADIGMS[:2]]
        cached = mode != "recompute"
        times = [1e3 * value for value in (own.latency.mean, own.latency.median, own.p95_s)]
        hits = [own.device_hits if cached else None, own.total_hits if cached else None]
        rows.append([measured.size, mode, own.latency.count, *times, *over, *hits])
    return rows


def _figures(run: Run, measured: Measured) -> None:
    summaries = by_paradigm(measured.records, PARADIGMS)
    at, aimed = f"{measured.workload}, batch {measured.size}", measured.workload == "kuairand" and measured.size == 8
    for mode, own in summaries.items():
        run.figures.append(figure(f"{at}: {mode}, mean latency", mean_spread(own.seconds), "ms", scale=1e3))
    if len(summaries) < len(PARADIGMS):
        return
    mine = summaries["hierarchical"]
    for base, aim in zip(PARADIGMS[:2], (OVER_RECOMPUTE, OVER_DEVICE), strict=True):
        ratio = mean_ratio(summaries[base].seconds, mine.seconds)
        run.figures.append(
            figure(f"{at}: hierarchical over {base}", ratio, "x", "higher", run.aim(aim) if aimed else None)
        )
    hits = figure(f"{at}: total hit ratio", mine.total_hits, "%", "higher", run.aim(HITS) if aimed else None)
    run.figures.append(hits)


def _bars(name: str, found: Sequence[Measured]) -> Plot:
    series = []
    for mode in PARADIGMS:
        spreads = [(f"batch {item.size}", mean_spread(own.seconds))
                   for item in found for own in [by_paradigm(item.records, PARADIGMS).get(mode)] if own]  # fmt: skip
        series.append(
            Series(
                label=mode, x=[label for label, _ in spreads], y=[1e3 * spread.mean for _, spread in spreads],
                low=[1e3 * spread.low for _, spread in spreads], high=[1e3 * spread.high for _, spread in spreads],
            )
        )  # fmt: skip
    return Plot(
        key=f"{name} latency", title=f"Mean latency by paradigm, {name}", kind="bars", x_label="", y_label="ms",
        series=series, log_y=True,
    )  # fmt: skip


def _hits(name: str, found: Sequence[Measured]) -> Plot:
    labels: list[float | str] = [f"batch {item.size}" for item in found]
    mine = [by_paradigm(item.records, PARADIGMS).get("hierarchical") for item in found]
    device = [own.device_hits if own else 0.0 for own in mine]
    host = [own.total_hits - own.device_hits if own else 0.0 for own in mine]
    series = [Series(label="on the device", x=labels, y=device), Series(label="on the host", x=labels, y=host)]
    return Plot(
        key=f"{name} hits", title=f"Where the hierarchical cache finds histories, {name}", kind="stacked", x_label="",
        y_label="share of history tokens", series=series,
    )  # fmt: skip


COMMAND = Command("paradigms", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
