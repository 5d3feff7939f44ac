"""`python -m perf.steps`: the paper's Table 2, where a batch's time goes; and what a server adds around it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import mean

from mtserve_backend.steps import STEPS
from perf.lab import paper
from perf.lab.command import Command, Refused, Run, at_least_one, start
from perf.lab.pools import Pools, knobs
from perf.lab.presets import PARADIGMS
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import model_folder
from perf.lab.side_by_side import Measured, Round, measure
from perf.lab.workloads import WORKLOADS
from perf.stats import Spread, mean_spread
from perf.traffic.nothing import NOTHING
from perf.traffic.record import Record
from perf.traffic.server import ServerTarget, targets
from perf.traffic.target import Answer, Steps, checked
from perf.visits import SyntheticUsers

ABOUT = """\
Mean milliseconds of each step of Algorithm 1 for a batch of 1, 4 and 8 on the trace like KuaiRand-1K, in the three
paradigms, asked in turns: Table 2. The engines run without a server, each in a process of its own. Then, through a
real Triton and gRPC, what a lone request of a user whose history is on the device takes around the core step (step 8,
by the server's own metrics): client, gRPC, Triton, parsing, metadata, embedding, layout, scoring, ranking, answer. A
model of the same server that does nothing is asked the same in turn: what any Python model takes at the least."""
EXAMPLE = "--preset smoke --json steps.json"
WORKLOAD = "kuairand"
ROUNDS = {
    "smoke": (Round(1, 6), Round(4, 4), Round(8, 6)),
    "cpu": (Round(1, 6, 3), Round(4, 4, 4), Round(8, 4, 4)),
    "gpu": (Round(1, 400), Round(4, 100), Round(8, 100)),
}
CORE = STEPS[7]
AROUND_SHARE, AROUND_MS = 0.15, 3.0


@dataclass(frozen=True)
class Lone:
    """`groups` times `visits` requests of one user with this history; the metrics are read after each group."""

    history: int
    groups: int
    visits: int


LONE = {"smoke": Lone(400, 2, 10), "cpu": Lone(6_400, 6, 10), "gpu": Lone(6_400, 6, 50)}


@dataclass
class Around:
    """Of each group the mean milliseconds of a request: as the client sees it, of its core step, and of the same
    request to a model that does nothing.
    """

    latency_ms: list[float] = field(default_factory=list)
    core_ms: list[float] = field(default_factory=list)
    nothing_ms: list[float] = field(default_factory=list)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="so many times the batches")
    parser.add_argument("--only", choices=("steps", "around"), help="one part: Table 2, or what a server adds")


def _measure(run: Run) -> None:
    found: list[Measured] = []
    around = Around()
    run.at_the_end(lambda: _conclude(run, found, around))
    if run.arguments.only in (None, "around"):
        _measure_around(run, around)
    if run.arguments.only in (None, "steps"):
        rounds = [item.times(run.arguments.times) for item in ROUNDS[run.preset.size]]
        measure(run, WORKLOADS[run.preset.size][WORKLOAD], rounds, "engine", found)


def _measure_around(run: Run, around: Around) -> None:
    preset, lone = run.preset, LONE[run.preset.size]
    people = SyntheticUsers(preset.model.items, preset.model.actions, run.seed)
    room = lone.history + (lone.groups * lone.visits + 8) * preset.new
    chosen = knobs(preset, "hierarchical", Pools(2 * room, preset.page_tokens, room, 1))
    models: dict[str, dict[str, str]] = {"hierarchical": chosen, NOTHING: {}}
    config = "gpu" if preset.device == "cuda" else "cpu"
    with model_folder(preset.model, run.seed) as folder, targets(folder, models, config, settle_s=0) as served:
        target, nothing = served["hierarchical"], served[NOTHING]
        for new in (lone.history, *[preset.new] * 5):
            visit = people.visit(1, new, preset.candidates)
            for each in (target, nothing):
                checked(each.serve([visit]))
        before = target.step_ms()[CORE]
        with closing(run.bar("lone requests", lone.groups)) as bar:
            for _ in range(lone.groups):
                times = [_lone(run, target, nothing, people) for _ in range(lone.visits)]
                after = target.step_ms()[CORE]
                around.latency_ms.append(mean(latency for latency, _ in times))
                around.nothing_ms.append(mean(latency for _, latency in times))
                around.core_ms.append((after - before) / lone.visits)
                before = after
                bar.update()


def _lone(run: Run, target: ServerTarget, nothing: ServerTarget, people: SyntheticUsers) -> tuple[float, float]:
    """Milliseconds of a request whose history must be on the device; and of the same, to a model that does nothing."""
    visit = people.visit(1, run.preset.new, run.preset.candidates)
    served = checked(target.serve([visit]))
    (answer,) = served.answers
    if answer.host or answer.recomputed:
        raise Refused(f"a history that should be on the device was not: {_places(answer)}")
    return 1e3 * served.latency_s, 1e3 * checked(nothing.serve([visit])).latency_s


def _places(answer: Answer) -> str:
    return f"{answer.device} tokens there, {answer.host} on the host, {answer.recomputed} recomputed"


# --- what came of it -------------------------------------------------------------------------------------------------


def _conclude(run: Run, found: Sequence[Measured], around: Around) -> None:
    found = [measured for measured in found if measured.records]
    if found:
        run.tables += [_table(found), paper.steps()]
        run.plots.append(_bars(found[-1]))
        for measured in found:
            _figures(run, measured)
    if around.latency_ms:
        _conclude_around(run, around)


def _batches(records: Sequence[Record]) -> list[Steps]:
    """A batch's steps, once."""
    return list({record.batch: record.steps for record in records if record.steps}.values())


def _table(found: Sequence[Measured]) -> Table:
    columns = [Column(name="step")] + [
        Column(name=f"{mode}, batch {measured.size}", unit="ms", digits=2) for measured in found for mode in PARADIGMS
    ]
    cells = [_batches(measured.of(mode)) for measured in found for mode in PARADIGMS]

    def row(name: str, value: Sequence[float | None]) -> list[Cell]:
        return [name, *value]

    rows = [
        row(name, [mean(steps.ms[number] for steps in batches) if batches else None for batches in cells])
        for number, name in enumerate(STEPS)
    ]
    rows.append(row("of 8: waiting for loads", [_mean_of(batches, "waited_ms") for batches in cells]))
    rows.append(row("in all", [mean(sum(steps.ms) for steps in batches) if batches else None for batches in cells]))
    rows.append(row("rows computed", [_mean_of(batches, "rows") for batches in cells]))
    return Table(key="steps", title=f"Steps of Algorithm 1 on the trace {WORKLOAD}", columns=columns, rows=rows)


def _mean_of(batches: Sequence[Steps], name: str) -> float | None:
    return mean(getattr(steps, name) for steps in batches) if batches else None


def _figures(run: Run, measured: Measured) -> None:
    for mode in PARADIGMS:
        batches = _batches(measured.of(mode))
        if batches:
            core = mean_spread([steps.ms[7] for steps in batches])
            rest = mean_spread([sum(steps.ms) - steps.ms[7] for steps in batches])
            run.figures.append(figure(f"batch {measured.size}: {mode}, core step", core, "ms"))
            run.figures.append(figure(f"batch {measured.size}: {mode}, all other steps", rest, "ms"))


def _bars(measured: Measured) -> Plot:
    batches = {mode: _batches(measured.of(mode)) for mode in PARADIGMS}
    labels: list[float | str] = [mode for mode in PARADIGMS if batches[mode]]
    layers = {
        "computing": [mean(steps.ms[7] - steps.waited_ms for steps in batches[str(mode)]) for mode in labels],
        "waiting for loads": [mean(steps.waited_ms for steps in batches[str(mode)]) for mode in labels],
        "all other steps": [mean(sum(steps.ms) - steps.ms[7] for steps in batches[str(mode)]) for mode in labels],
    }
    series = [Series(label=name, x=labels, y=values) for name, values in layers.items()]
    title = f"Where a batch of {measured.size} spends its time"
    return Plot(key="steps", title=title, kind="stacked", x_label="", y_label="ms", series=series)


def _conclude_around(run: Run, around: Around) -> None:
    lone = LONE[run.preset.size]
    rest = [whole - core for whole, core in zip(around.latency_ms, around.core_ms, strict=True)]
    shares = [part / whole for part, whole in zip(rest, around.latency_ms, strict=True)]
    at = f"device hit of {lone.history:,} through the server"
    run.figures += [
        figure(f"{at}: latency", Spread.of(around.latency_ms), "ms"),
        figure(f"{at}: core step", Spread.of(around.core_ms), "ms"),
        figure(f"{at}: around the core step", Spread.of(rest), "ms", aim=run.aim(AROUND_MS)),
        figure(f"{at}: the same to a model that does nothing", Spread.of(around.nothing_ms), "ms"),
        figure(f"{at}: around it, share of the latency", Spread.of(shares), "%", aim=run.aim(AROUND_SHARE)),
    ]
    columns = [
        Column(name="group"),
        *(
            Column(name=name, unit="ms", digits=2)
            for name in ("latency", "core", "around", "a model that does nothing")
        ),
    ]
    columns.append(Column(name="share around", unit="%"))
    rows: list[list[Cell]] = [
        [number, *values]
        for number, values in enumerate(
            zip(around.latency_ms, around.core_ms, rest, around.nothing_ms, shares, strict=True), start=1
        )
    ]
    note = f"means of {lone.visits} requests, {run.preset.new} new events and {run.preset.candidates} candidates each"
    title = f"A lone request around the core step: history {lone.history:,}, on the device"
    run.tables.append(Table(key="around", title=title, columns=columns, rows=rows, note=note))


COMMAND = Command("steps", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
