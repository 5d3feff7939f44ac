"""`python -m perf.tokens`: the paper's Figure 1, tokens computed for three requests of one user in a row."""

from __future__ import annotations

from dataclasses import dataclass

from perf.lab import paper
from perf.lab.command import Command, Run, start
from perf.lab.pools import Pools, knobs
from perf.lab.presets import SMOKE
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import engines, model_folder
from perf.traffic.target import checked
from perf.visits import SyntheticUsers

ABOUT = """\
Rows that the model computes for three requests of one user in a row, counted by the engine: recomputed, and with the
history before them in the cache. The paper's figure publishes the two sums only; the history (1,120), new events (48)
and candidates (128) of a request are chosen so that the sums are nearly the paper's. A count, the same with any
model: every preset uses the tiny one."""
EXAMPLE = "--json tokens.json"
REQUESTS = 3


@dataclass(frozen=True)
class Story:
    """What the three requests are."""

    history: int = 1_120
    new: int = 48
    candidates: int = 128


STORY = Story()


def _measure(run: Run) -> None:
    room = 2 * (STORY.history + REQUESTS * STORY.new)
    modes = {"recompute": "recompute", "reuse": "hierarchical"}
    models = {way: knobs(SMOKE, mode, Pools(room, room, room, 1)) for way, mode in modes.items()}
    rows: dict[str, list[int]] = {way: [] for way in modes}
    with model_folder(SMOKE.model, run.seed) as folder, engines(folder, models, "cpu") as targets:
        for way, target in targets.items():
            people = SyntheticUsers(SMOKE.model.items, SMOKE.model.actions, run.seed)
            checked(target.serve([people.visit(1, STORY.history, 0)]))
            for _ in range(REQUESTS):
                served = checked(target.serve([people.visit(1, STORY.new, STORY.candidates)]))
                if served.steps is not None:
                    rows[way].append(served.steps.rows)
    columns = [Column(name="way"), *(Column(name=f"request {number}") for number in range(1, REQUESTS + 1))]
    columns.append(Column(name="in all"))
    cells: list[list[Cell]] = [[way, *counts, sum(counts)] for way, counts in rows.items()]
    note = f"a history of {STORY.history:,}; {STORY.new} new events and {STORY.candidates} candidates a request"
    title = "Tokens computed for three requests of one user"
    run.tables += [
        Table(key="tokens", title=title, columns=columns, rows=cells, origin="counted", note=note),
        paper.tokens(),
    ]
    for way, counts in rows.items():
        run.figures.append(figure(f"{way}: tokens computed", float(sum(counts)), "tokens"))
    saved = 1 - sum(rows["reuse"]) / sum(rows["recompute"])
    run.figures.append(figure("tokens that reuse saves", saved, "%", "higher"))
    ways: list[float | str] = list(rows)
    series = [
        Series(label="counted here", x=ways, y=[float(sum(counts)) for counts in rows.values()], origin="counted"),
        Series(label="the paper", x=ways, y=[float(paper.TOKENS[str(way)]) for way in ways], origin="paper"),
    ]
    run.plots.append(
        Plot(key="tokens", title="Tokens computed", kind="bars", x_label="", y_label="tokens", series=series)
    )


COMMAND = Command("tokens", ABOUT, EXAMPLE, _measure, uses_device=False)

if __name__ == "__main__":
    start(COMMAND)
