"""`python -m perf.scale`: latency against the history's length, the batch and the number of users, through a server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from perf.lab.command import Command, Run, start
from perf.lab.pools import Pools, knobs
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import model_folder, through
from perf.lab.sweep import WAYS, Point, Room, Timed, growth, measure, models
from perf.stats import Spread, ratios
from perf.traffic.target import checked
from perf.visits import SyntheticUsers

ABOUT = """\
Latency of a returning user's request, recomputed, found on the device, and brought from the host, in turns: against the
length of the history, against the batch, and against the number of other users that the server knows. Through a real
Triton and gRPC. Latency of a batch: until its last answer."""
EXAMPLE = "--preset smoke --json scale.json"
OVER_DEVICE_HIT, OVER_HOST_HIT, AIMED_AT = 30.0, 20.0, Point(6_400)


@dataclass(frozen=True)
class Sizes:
    """`batches` are measured at `batch_history`; `users`, so many others with 16 events each, at `user_history`."""

    histories: tuple[int, ...]
    batches: tuple[int, ...]
    batch_history: int
    users: tuple[int, ...]
    user_history: int
    rounds: int


SIZES = {
    "smoke": Sizes((100, 400), (1, 4), 100, (50, 200), 100, 2),
    "cpu": Sizes((800, 1_600, 3_200, 6_400), (1, 2, 4, 8), 1_600, (100, 1_000, 4_000), 800, 5),
    "gpu": Sizes((800, 1_600, 3_200, 6_400, 12_800), (1, 2, 4, 8, 16, 32), 6_400, (1_000, 10_000), 6_400, 20),
}
STRANGER_EVENTS = 16


def _options(parser: argparse.ArgumentParser) -> None:
    parts = ("history", "batch", "users")
    parser.add_argument(
        "--only", choices=parts, nargs="+", default=list(parts), metavar="PART", help="of history, batch, users"
    )
    parser.add_argument(
        "--through", choices=("server", "engine"), default="server", help="a real Triton (default), or none"
    )


def _measure(run: Run) -> None:
    sizes = SIZES[run.preset.size]
    by_history: list[Timed] = []
    by_batch: list[Timed] = []
    by_users: dict[int, list[float]] = {}
    run.at_the_end(lambda: _conclude(run, by_history, by_batch, by_users))
    if "history" in run.arguments.only:
        _sweep(run, [Point(history) for history in sizes.histories], by_history)
    if "batch" in run.arguments.only:
        _sweep(run, [Point(sizes.batch_history, batch) for batch in sizes.batches], by_batch)
    if "users" in run.arguments.only:
        _measure_users(run, sizes, by_users)


def _sweep(run: Run, points: Sequence[Point], found: list[Timed]) -> None:
    rounds = SIZES[run.preset.size].rounds
    for point in points:
        room = Room(point, growth(rounds, run.preset.new), run.preset.page_tokens)
        with models(run, run.arguments.through, room) as targets:
            measure(run, targets, point, room, rounds, found)


def _measure_users(run: Run, sizes: Sizes, found: dict[int, list[float]]) -> None:
    """Device hits of one user after each crowd of strangers. Their states need not fit: only they must be known."""
    preset = run.preset
    people = SyntheticUsers(preset.model.items, preset.model.actions, run.seed)
    visits = 4 * sizes.rounds
    room = sizes.user_history + preset.new * (visits + 2) * len(sizes.users) + 4 * 64 * preset.page_tokens
    model = {"hierarchical": knobs(preset, "hierarchical", Pools(room, room, 2 * room, 128))}
    with (
        model_folder(preset.model, run.seed) as folder,
        through(run.arguments.through, folder, model, preset, 64) as targets,
        closing(run.bar("strangers", max(sizes.users))) as bar,
    ):
        target, known = targets["hierarchical"], 0
        for count in sizes.users:
            while known < count:
                batch = range(2 + known, 2 + min(count, known + 64))
                checked(target.serve([people.visit(user, STRANGER_EVENTS, 0) for user in batch]))
                known += len(batch)
                bar.update(len(batch))
            target.settle()
            found[count] = []
            for number in range(visits + 2):
                new = preset.new if number or count != sizes.users[0] else sizes.user_history
                served = checked(target.serve([people.visit(1, new, preset.candidates)]))
                target.settle()
                if number > 1:
                    found[count].append(served.latency_s)


# --- what came of it -------------------------------------------------------------------------------------------------


def _conclude(
    run: Run, by_history: Sequence[Timed], by_batch: Sequence[Timed], by_users: dict[int, list[float]]
) -> None:
    for key, found in (("history", by_history), ("batch", by_batch)):
        whole = [timed for timed in found if all(timed.seconds.values())]
        if whole:
            run.tables.append(_table(key, whole))
            run.plots.append(_plot(key, whole))
            for timed in whole:
                _figures(run, key, timed)
    whole_users = {count: Spread.of(seconds) for count, seconds in by_users.items() if seconds}
    if whole_users:
        _conclude_users(run, whole_users)


def _figures(run: Run, key: str, timed: Timed) -> None:
    point = timed.point
    at = f"by {key}: history {point.history:,}, batch {point.batch}"
    for way in WAYS:
        run.figures.append(figure(f"{at}: {way}", Spread.of(timed.seconds[way]), "ms", scale=1e3))
    for way, aim in zip(WAYS[1:], (OVER_DEVICE_HIT, OVER_HOST_HIT), strict=True):
        ratio = ratios(timed.seconds["recompute"], timed.seconds[way])
        aimed = run.aim(aim) if key == "history" and point == AIMED_AT else None
        run.figures.append(figure(f"{at}: recompute over {way}", ratio, "x", "higher", aimed))


def _table(key: str, found: Sequence[Timed]) -> Table:
    columns = [Column(name="history"), Column(name="batch")]
    columns += [Column(name=way, unit="ms") for way in WAYS]
    columns += [Column(name=f"recompute over {way}", unit="x") for way in WAYS[1:]]
    rows: list[list[Cell]] = []
    for timed in found:
        medians = [Spread.of(timed.seconds[way]).median for way in WAYS]
        ms = [1e3 * value for value in medians]
        rows.append([timed.point.history, timed.point.batch, *ms, *(medians[0] / value for value in medians[1:])])
    return Table(key=key, title=f"Latency against the {key}", columns=columns, rows=rows, note="medians")


def _plot(key: str, found: Sequence[Timed]) -> Plot:
    series = []
    for way in WAYS:
        spreads = [Spread.of(timed.seconds[way]) for timed in found]
        x: list[float | str] = [getattr(timed.point, key) for timed in found]
        series.append(
            Series(
                label=way, x=x, y=[1e3 * spread.median for spread in spreads],
                low=[1e3 * spread.low for spread in spreads], high=[1e3 * spread.high for spread in spreads],
            )
        )  # fmt: skip
    label = "history (events)" if key == "history" else f"batch, histories of {found[0].point.history:,}"
    return Plot(
        key=key, title=f"Latency against the {key}", kind="line", x_label=label, y_label="ms", series=series,
        log_x=True, log_y=True,
    )  # fmt: skip


def _conclude_users(run: Run, found: dict[int, Spread]) -> None:
    columns = [Column(name="users known"), Column(name="device hit", unit="ms", digits=2)]
    rows: list[list[Cell]] = [[count, 1e3 * spread.median] for count, spread in found.items()]
    note = f"medians, a history of {SIZES[run.preset.size].user_history:,}; perf.metadata goes on to ten million users"
    run.tables.append(
        Table(key="users", title="Latency against the users known", columns=columns, rows=rows, note=note)
    )
    for count, spread in found.items():
        run.figures.append(figure(f"{count:,} users known: device hit", spread, "ms", scale=1e3))
    series = Series(
        label="device hit", x=list(found), y=[1e3 * spread.median for spread in found.values()],
        low=[1e3 * spread.low for spread in found.values()], high=[1e3 * spread.high for spread in found.values()],
    )  # fmt: skip
    run.plots.append(
        Plot(key="users", title="Latency against the users known", kind="line", x_label="users", y_label="ms",
             series=[series], log_x=True)
    )  # fmt: skip


COMMAND = Command("scale", ABOUT, EXAMPLE, _measure, _options)

if __name__ == "__main__":
    start(COMMAND)
