"""`python -m perf.chunks`: the paper's Table 3, waiting for loads against computing, by the size of host chunks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import mean

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
One hierarchical cache for each size of host chunks, asked in turns with the same batches of 8 on the trace like
KuaiRand-1K: how long step 8 waits for loads, how long it computes, and how long the batch takes: Table 3. In the paper
what is not a whole chunk is lost at an eviction; here tails are saved too, so that larger chunks recompute nothing."""
EXAMPLE = "--preset smoke --json chunks.json"
BATCH = 8
ENCODE = 7  # step 8


@dataclass(frozen=True)
class Sizes:
    """`mean_length`: of histories. The device has room for `device_share` of them, so that many come from the host."""

    chunks: tuple[int, ...]
    mean_length: int
    batches: int
    device_share: float


SIZES = {
    "smoke": Sizes((64, 128, 256), 200, 4, 0.75),
    "cpu": Sizes((512, 1_024, 2_048, 4_096), 2_400, 10, 0.6),
    "gpu": Sizes((512, 1_024, 2_048, 4_096), 6_375, 100, 0.112),
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="so many times the batches")


def _workload(run: Run) -> Workload:
    sizes = SIZES[run.preset.size]
    workload = WORKLOADS[run.preset.size]["kuairand"]
    return replace(workload, mean_length=sizes.mean_length, device_share=sizes.device_share)


def _measure(run: Run) -> None:
    sizes, preset, workload = SIZES[run.preset.size], run.preset, _workload(run)
    found: dict[int, list[Record]] = {}
    run.at_the_end(lambda: _conclude(run, found))
    part = workload.window(preset, run.seed)
    pools = workload.pools(part, BATCH)
    models = {str(size): knobs(preset, "hierarchical", replace(pools, chunk_tokens=size)) for size in sizes.chunks}
    with model_folder(preset.model, run.seed) as folder, engines(folder, models, preset.device) as targets:
        with closing(run.bar("warming", len(part.before) * len(models))) as bar:
            warm(targets, part.before, bar.update)
        book, count = Book(), sizes.batches * run.arguments.times
        with closing(run.bar("batches", count * len(models))) as bar:
            for turn in interleaved(targets, Dealer(part.visits), BATCH, count):
                records = found.setdefault(int(turn.name), [])
                records.extend(book.records(turn.name, turn.batch, checked(turn.served)))
                bar.update()


def _conclude(run: Run, found: dict[int, list[Record]]) -> None:
    if not found:
        return
    columns = [Column(name="chunk tokens"), Column(name="batches")]
    columns += [Column(name=name, unit="ms", digits=2) for name in ("waiting", "computing", "end to end")]
    columns += [Column(name=name, unit="%", digits=2) for name in ("device hits", "total hits")]
    rows: list[list[Cell]] = []
    layers: dict[str, list[float]] = {"waiting for loads": [], "computing": [], "other steps": []}
    for size in sorted(found):
        waiting, computing, whole = _times(found[size])
        summary = summarize(found[size])
        rows.append(
            [size, len(whole), mean(waiting), mean(computing), mean(whole), summary.device_hits, summary.total_hits]
        )
        for layer, value in zip(
            layers.values(),
            (mean(waiting), mean(computing), mean(whole) - mean(waiting) - mean(computing)),
            strict=True,
        ):
            layer.append(value)
        at = f"chunks of {size:,}"
        run.figures.append(figure(f"{at}: waiting for loads", mean_spread(waiting), "ms"))
        run.figures.append(figure(f"{at}: end to end", mean_spread(whole), "ms"))
    note = f"means of batches of {BATCH}, histories of about {SIZES[run.preset.size].mean_length:,}"
    run.tables += [Table(key="chunks", title="Chunk sizes", columns=columns, rows=rows, note=note), paper.chunks()]
    labels: list[float | str] = [f"{size:,}" for size in sorted(found)]
    series = [Series(label=name, x=labels, y=values) for name, values in layers.items()]
    title = "Waiting and computing by chunk size"
    run.plots.append(
        Plot(key="chunks", title=title, kind="stacked", x_label="tokens in a chunk", y_label="ms", series=series)
    )


def _times(records: Sequence[Record]) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of each batch: waiting in step 8, the rest of step 8, all."""
    batches = {record.batch: record for record in records}.values()
    steps = [record.steps for record in batches if record.steps]
    waiting = [own.waited_ms for own in steps]
    return waiting, [own.ms[ENCODE] - own.waited_ms for own in steps], [1e3 * record.latency_s for record in batches]


COMMAND = Command("chunks", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
