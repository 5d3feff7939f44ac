"""`python -m perf.replay`: a trace against a real server or an engine; a record of every request."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

from perf.lab.command import Command, Refused, Run, at_least_one, positive, start
from perf.lab.distributions import latency_steps
from perf.lab.pools import Pools, knobs
from perf.lab.presets import PARADIGMS
from perf.lab.result import Cell, Column, Table, figure
from perf.lab.rig import model_folder, through
from perf.lab.workloads import WORKLOADS
from perf.stats import mean_spread
from perf.traces.reader import Trace
from perf.traffic.dealer import Dealer
from perf.traffic.loops import Replay, interleaved, warm
from perf.traffic.record import Book, Record, RecordFile, by_paradigm
from perf.traffic.server import ServerTarget
from perf.traffic.source import Histories, Vocabulary, Window, poisson, sped_up, window
from perf.traffic.target import Target
from perf.visits import Visit

ABOUT = """\
Replay a trace: its requests, in its order, to a model in one or several cache modes, and a record of every request.

Without a TRACE a made-up one with KuaiRand-1K's shape is replayed from its middle. Before the measured part every
user's last visit is served, so that caches hold what they would. In a closed loop a batch follows when one is answered;
in an open loop (--open) every request is sent when it is due, and its latency counts from then. A user's requests are
never under way together. Paradigms run side by side, in turns, where one batch is under way at a time; else one
after the other over the same requests."""
EXAMPLE = """--preset smoke --batch 8 --records requests.csv
         python -m perf.replay --preset smoke --open --speed 600 --paradigms hierarchical
         python -m perf.replay kuairand-1k.trace --requests 500 --batch 4 --through engine
         python -m perf.replay kuairand-1k.trace --server localhost:8001 --model hstu --poisson 20"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="a file that perf.traces made")
    parser.add_argument("--paradigms", nargs="+", choices=PARADIGMS, default=list(PARADIGMS), help="default: all")
    parser.add_argument(
        "--through", choices=("server", "engine"), default="server", help="a real Triton (default), or none"
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="one that runs already; its model is what it is")
    parser.add_argument("--model", default="hstu", metavar="NAME", help="the model of --server (default: hstu)")
    parser.add_argument("--items", type=at_least_one, metavar="N", help="with --server: item IDs that its model knows")
    parser.add_argument("--actions", type=at_least_one, metavar="N", help="with --server: actions that its model knows")
    parser.add_argument("--requests", type=at_least_one, default=64, metavar="N", help="measured (default: 64)")
    parser.add_argument("--warm-up", type=int, default=0, metavar="N", help="requests before them, not measured")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this request of TRACE")
    parser.add_argument(
        "--batch", type=at_least_one, default=1, metavar="N", help="requests sent together (default: 1)"
    )
    parser.add_argument(
        "--concurrency", type=at_least_one, default=1, metavar="N", help="batches under way (default: 1)"
    )
    parser.add_argument("--open", action="store_true", help="an open loop with the trace's own arrivals")
    parser.add_argument("--speed", type=positive, default=1.0, metavar="X", help="of those arrivals (default: 1)")
    parser.add_argument(
        "--poisson", type=positive, metavar="R", help="an open loop with R arrivals a second, at random"
    )
    parser.add_argument("--device-share", type=positive, default=0.6, metavar="S", help="tokens that the device holds")
    parser.add_argument("--records", type=Path, metavar="FILE", help="write every request's record here, as CSV")


def _measure(run: Run) -> None:
    options = run.arguments
    records: list[Record] = []
    run.at_the_end(lambda: conclude(run, records))
    if options.server:
        if not (options.items and options.actions):
            raise Refused("--server needs --items and --actions: how many of each its model's config.json says")
        part = _part(run, Vocabulary(options.items, options.actions))
        with ServerTarget(options.server, options.model, options.batch) as target:
            _replay(run, {options.model: target}, part, records)
        return
    preset = run.preset
    part = _part(run, Vocabulary(preset.model.items, preset.model.actions))
    pools = _pools(part, run) if options.trace else WORKLOADS[preset.size]["kuairand"].pools(part, options.batch)
    models = {mode: knobs(preset, mode, pools) for mode in options.paradigms}
    with (
        model_folder(preset.model, run.seed) as folder,
        through(options.through, folder, models, preset, options.batch * options.concurrency) as targets,
    ):
        _replay(run, targets, part, records)


def _part(run: Run, known: Vocabulary) -> Window:
    options = run.arguments
    if options.trace is None:
        return WORKLOADS[run.preset.size]["kuairand"].window(run.preset, run.seed)
    histories = Histories(known, run.preset.candidates, run.seed)
    trace = Trace(options.trace)
    try:
        part = window(trace.arrivals(), histories, first=options.first)
    except ValueError as error:
        raise Refused(str(error)) from error
    return Window(part.before, _closing(trace, part.visits))


def _closing(trace: Trace, visits: Iterator[Visit]) -> Iterator[Visit]:
    with trace:
        yield from visits


def _pools(part: Window, run: Run) -> Pools:
    """For what there is, and for what will come: both are histories at most as long as the model's."""
    options = run.arguments
    count = options.requests + options.warm_up
    longest = max((len(visit.items) for visit in part.before), default=0) + 64 * count
    longest = min(longest, run.preset.model.max_history)
    users = len(part.before) or count
    tokens = part.tokens + 64 * count
    return Pools(int(options.device_share * tokens), options.batch * longest, int(1.1 * tokens), users)


def _replay(run: Run, targets: Mapping[str, Target], part: Window, records: list[Record]) -> None:
    options = run.arguments
    cached = {name: target for name, target in targets.items() if name != "recompute"}
    with closing(run.bar("warming", len(part.before) * len(cached))) as bar:
        warm(cached, part.before, bar.update)
    visits = list(islice(part.visits, options.warm_up + options.requests))
    first, rest = visits[: options.warm_up], visits[options.warm_up :]
    for turn in interleaved(targets, Dealer(first), options.batch):
        del turn
    with ExitStack() as stack:
        bar = stack.enter_context(closing(run.bar("replaying", len(rest) * len(targets))))
        file = stack.enter_context(closing(RecordFile(options.records))) if options.records else None

        def keep(record: Record) -> None:
            records.append(record)
            if file is not None:
                file.append(record)
            bar.update()

        if options.concurrency == 1 and not (options.open or options.poisson):
            book = Book()
            for turn in interleaved(targets, Dealer(rest), options.batch):
                for record in book.records(turn.name, turn.batch, turn.served):
                    keep(record)
            return
        for name, target in targets.items():
            loop = Replay(name, target, keep)
            if options.poisson:
                loop.open(poisson(rest, options.poisson, run.seed), options.batch)
            elif options.open:
                loop.open(sped_up(rest, options.speed), options.batch)
            else:
                loop.closed(rest, options.batch, options.concurrency)


def conclude(run: Run, records: list[Record]) -> None:
    """Of what was measured: a table by paradigm, and latencies' distributions."""
    names = list(dict.fromkeys(record.paradigm for record in records))
    found = by_paradigm(records, names)
    if not found:
        return
    columns = [
        Column(name="paradigm"), Column(name="requests"), Column(name="failed"), Column(name="mean", unit="ms"),
        Column(name="p50", unit="ms"), Column(name="p95", unit="ms"), Column(name="p99", unit="ms"),
        Column(name="queued, p50", unit="ms", digits=2), Column(name="device hits", unit="%", digits=2),
        Column(name="total hits", unit="%", digits=2),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, own in found.items():
        times = (own.latency.mean, own.latency.median, own.p95_s, own.p99_s, own.queue_s)
        milliseconds = [1e3 * value for value in times]
        rows.append([name, own.requests, own.failed, *milliseconds, own.device_hits, own.total_hits])
        run.figures.append(figure(f"{name}: mean latency", mean_spread(own.seconds), "ms", scale=1e3))
        run.figures.append(figure(f"{name}: total hit ratio", own.total_hits, "%", "higher"))
    note = f"latency of a batch of {run.arguments.batch}: that of its slowest request"
    run.tables.append(Table(key="replay", title="The trace replayed", columns=columns, rows=rows, note=note))
    run.plots.append(latency_steps("replay", "Latency of a batch", {name: own.seconds for name, own in found.items()}))


COMMAND = Command("replay", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
