"""Returning users with a fixed history: recomputed, found on the device and brought from the host, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice

from mtserve_backend.cache.manager import COLD_SHARE
from perf.lab.command import Refused, Run
from perf.lab.pools import Pools, knobs
from perf.lab.rig import model_folder, through
from perf.traffic.target import Served, Target, checked
from perf.visits import SyntheticUsers

# How a history is found. Each is a model of its own: what is recomputed, and two hierarchical caches, one with room for
# everybody on the device, one with room for a few batches.
WAYS = ("recompute", "device hit", "host hit")
# Requests of each way in a round: hits are quick, and vary more.
TURNS = {"recompute": 1, "device hit": 4, "host hit": 4}


@dataclass(frozen=True)
class Point:
    """`batch` users with histories of `history` tokens, together."""

    history: int
    batch: int = 1


@dataclass
class Timed:
    """Seconds of each batch, by way."""

    point: Point
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})


class Room:
    """What a point needs, in tokens: every user's history may grow by `growth` while it is measured.

    There are so many `guests` that, one batch after the other, whoever comes has been pushed off the device by others.
    """

    def __init__(self, point: Point, growth: int, page: int) -> None:
        user = -(-(point.history + growth) // page) * page
        self.batch = point.batch
        self.resident = point.batch * user
        # Tails are saved ahead for so large a part of the device: a batch that evicted more would lose some.
        self.device = COLD_SHARE * self.resident
        fit = self.device // (point.history // page * page or page)
        self.guests = (fit // point.batch + 2) * point.batch
        self.host = self.guests * user


@contextmanager
def models(run: Run, way: str, room: Room) -> Iterator[Mapping[str, Target]]:
    """A target for each way. Raises as `rig.through` does."""
    preset = run.preset
    pools = {
        "recompute": ("recompute", Pools(1, 0, 1)),
        "device hit": ("hierarchical", Pools(room.resident, preset.page_tokens, room.resident, room.guests)),
        "host hit": ("hierarchical", Pools(room.device, room.resident, room.host, room.guests)),
    }
    # Triton's names of models have no spaces in them.
    knobs_of = {name.replace(" ", "-"): knobs(preset, mode, sizes) for name, (mode, sizes) in pools.items()}
    with (
        model_folder(preset.model, run.seed) as folder,
        through(way, folder, knobs_of, preset, room.batch) as targets,
    ):
        yield {name: targets[name.replace(" ", "-")] for name in WAYS}


def measure(run: Run, targets: Mapping[str, Target], point: Point, room: Room, rounds: int, found: list[Timed]) -> None:
    """Appends to `found` before it begins. Raises `Refused` where a history was not found where it should be."""
    preset = run.preset
    people = {way: SyntheticUsers(preset.model.items, preset.model.actions, run.seed) for way in WAYS}
    # Other points' users are other users: their numbers start elsewhere.
    base = 1 + 1_000_000 * (1 + len(found))
    users = {way: range(base, base + point.batch) for way in WAYS} | {"host hit": range(base, base + room.guests)}
    order = {way: _batches(users[way], point.batch) for way in WAYS}
    timed = Timed(point)
    found.append(timed)

    def ask(way: str, batch: Sequence[int], new: int) -> Served:
        return checked(targets[way].serve([people[way].visit(user, new, preset.candidates) for user in batch]))

    label = f"history {point.history:,}, batch {point.batch}"
    first = [(way, user) for way in WAYS[1:] for user in users[way]]
    with closing(run.bar(f"{label}: first visits", len(first))) as bar:
        for way, user in first:
            ask(way, [user], point.history)
            targets[way].settle()
            bar.update()
    for user in users["recompute"]:
        people["recompute"].visit(user, point.history, 0)
    with closing(run.bar(label, rounds + 1)) as bar:
        for number in range(rounds + 1):
            turn = number % len(WAYS)
            for way in WAYS[turn:] + WAYS[:turn]:
                for _ in range(TURNS[way]):
                    served = ask(way, next(order[way]), preset.new)
                    targets[way].settle()
                    if number:  # the first round warms processor caches and connections
                        _check(way, served, point)
                        timed.seconds[way].append(served.latency_s)
            bar.update()


def growth(rounds: int, new: int) -> int:
    """What a history gains at most while a point is measured."""
    return (rounds + 2) * max(TURNS.values()) * new


def _batches(users: Sequence[int], size: int) -> Iterator[list[int]]:
    """Forever, all users in turns."""
    turns = cycle(users)
    while True:
        yield list(islice(turns, size))


def _check(way: str, served: Served, point: Point) -> None:
    device, host, again = (
        sum(getattr(answer, name) for answer in served.answers) for name in ("device", "host", "recomputed")
    )
    wanted = {"recompute": again, "device hit": device, "host hit": host}[way]
    if wanted < 0.95 * (device + host + again):
        raise Refused(
            f"history {point.history:,}, batch {point.batch}: a {way} found {device} tokens on the device, {host} on "
            f"the host, and recomputed {again}; that is not what is to be measured"
        )
