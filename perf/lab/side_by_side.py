"""A workload through all paradigms in turns: what `perf.paradigms` and `perf.steps` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from perf.lab.command import Run
from perf.lab.pools import knobs
from perf.lab.presets import PARADIGMS
from perf.lab.rig import model_folder, through
from perf.lab.workloads import Workload
from perf.traffic.dealer import Dealer
from perf.traffic.loops import interleaved, warm
from perf.traffic.record import Book, Record
from perf.traffic.target import checked


@dataclass(frozen=True)
class Round:
    """`count` batches of `size` requests. Recomputing, which keeps nothing, is asked at every `every`-th of them."""

    size: int
    count: int
    every: int = 1

    def times(self, factor: int) -> Round:
        return Round(self.size, factor * self.count, self.every)


@dataclass
class Measured:
    """The records of one workload and batch size, all paradigms."""

    workload: str
    size: int
    records: list[Record]

    def of(self, paradigm: str) -> list[Record]:
        return [record for record in self.records if record.paradigm == paradigm]


def measure(run: Run, workload: Workload, rounds: Sequence[Round], way: str, found: list[Measured]) -> None:
    """Appends to `found` before it begins each round, so that an interrupt loses nothing. Raises as `rig.through` does.

    First the caches become what the trace before the window made of them: the users who came last are served, as many
    as there is room for on the device; on the host, all.
    """
    preset = run.preset
    part = workload.window(preset, run.seed)
    largest = max(item.size for item in rounds)
    pools = workload.pools(part, largest)
    models = {mode: knobs(preset, mode, pools) for mode in PARADIGMS}
    resident = part.before[-workload.resident(part, pools) :]
    with (
        model_folder(workload.model(preset), run.seed) as folder,
        through(way, folder, models, preset, largest) as targets,
    ):
        with closing(run.bar(f"{workload.name}: warming", len(part.before) + len(resident))) as bar:
            warm({"hierarchical": targets["hierarchical"]}, part.before, bar.update)
            warm({"device": targets["device"]}, resident, bar.update)
        dealer = Dealer(part.visits)
        for item in rounds:
            measured = Measured(workload.name, item.size, [])
            found.append(measured)
            book = Book()
            with closing(run.bar(f"{workload.name}: batches of {item.size}", item.count * len(PARADIGMS))) as bar:
                turns = interleaved(
                    targets, dealer, item.size, item.count,
                    lambda number, name, every=item.every: name != PARADIGMS[0] or number % every == 0,  # type: ignore[misc]
                )  # fmt: skip
                for turn in turns:
                    measured.records.extend(book.records(turn.name, turn.batch, checked(turn.served)))
                    bar.update()
