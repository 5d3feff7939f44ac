"""`python -m perf.scale`: latency against the length of a history, the size of a batch, and the number of users known.

Through real Triton and gRPC. Lengths: a user found on the device, found on the host, and recomputed. Batches: users of
one length, all on the device. Users: one on the device, while more and more others are known to the server.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

import numpy as np
from tqdm import tqdm

from perf.lab.command import Findings, run
from perf.lab.population import Population
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.lab.servers import knobs, serving
from perf.visits import Visit

HITS = 5
KNOWN = {"smoke": (10, 100), "cpu": (100, 1_000, 10_000)}
MANY_KNOWN = (1_000, 10_000, 100_000)


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    lengths(preset, seed, findings)
    batches_and_users(preset, seed, findings)


def lengths(preset: Preset, seed: int, findings: Findings) -> None:
    """Each length has two users, who take turns on a device that holds one."""
    rows = []
    for length in tqdm(preset.lengths, desc="lengths", file=sys.stderr):
        people = Population(preset, [length] * 2, preset.new, preset.candidates, seed)
        room = length + preset.new * 4 * (HITS + 1)
        common = knobs(preset, room + 2 * preset.page_tokens, 2 * (room + preset.chunk_tokens), room)
        taken: dict[str, list[float]] = {"recompute": [], "host": [], "device": []}
        models = {mode: {**common, "cache_mode": mode} for mode in ("recompute", "hierarchical")}
        with serving(preset, models) as served:
            for visit in people.first:
                served["hierarchical"].ask(visit)
            for turn in range(HITS):
                user = people.users[turn % 2]
                taken["host"].append(1e3 * served["hierarchical"].ask(people.visit(user)).seconds)
                taken["device"].append(1e3 * served["hierarchical"].ask(people.visit(user)).seconds)
                if turn < 2:
                    taken["recompute"].append(1e3 * served["recompute"].ask(people.visit(user)).seconds)
        rows.append([f"{length:,}", *(f"{median(values):,.1f}" for values in taken.values())])
        findings.figures += [
            figure(f"history {length}, {where}", values, "ms", plot="latency by history", series=where, x=length)
            for where, values in taken.items()
        ]
    findings.tables.append(
        Table("Latency against history length, ms", ["history", "recompute", "host", "device"], rows)
    )


def batches_and_users(preset: Preset, seed: int, findings: Findings) -> None:
    length = preset.lengths[1]
    known = KNOWN.get(preset.name, MANY_KNOWN)
    people = Population(preset, [length] * max(preset.batches), preset.new, preset.candidates, seed)
    room = length + preset.new * HITS * (len(preset.batches) + len(known) + 1)
    tokens = max(preset.batches) * (room + preset.page_tokens)
    with serving(preset, {"hierarchical": knobs(preset, tokens, 2 * tokens, room)}) as served:
        model = served["hierarchical"]
        for visit in people.first:
            model.ask(visit)
        rows = []
        for size in preset.batches:
            users = people.users[:size]
            values = [1e3 * model.ask_together([people.visit(user) for user in users])[0] for _ in range(HITS)]
            rows.append([f"{size}", f"{median(values):,.1f}", f"{median(values) / size:,.1f}"])
            findings.figures.append(
                figure(
                    f"batch {size} on the device", values, "ms", plot="latency by batch size", series="device", x=size
                )
            )
        findings.tables.append(
            Table(
                f"Latency against batch size, history {length:,}, on the device, ms", ["batch", "batch", "a user"], rows
            )
        )
        rows, told = [], 0
        for count in known:
            for number in tqdm(range(told, count), desc=f"{count:,} users known", file=sys.stderr, mininterval=1):
                model.ask(_stranger(number))
            told = count
            model.ask(people.visit(1))  # and back on the device, wherever the strangers have sent them
            values = [1e3 * model.ask(people.visit(1)).seconds for _ in range(HITS)]
            rows.append([f"{count:,}", f"{median(values):,.1f}"])
            findings.figures.append(
                figure(f"{count} users known", values, "ms", plot="latency by users known", series="device", x=count)
            )
        findings.tables.append(Table("Latency against users known, ms", ["others known", "device hit"], rows))


def _stranger(number: int) -> Visit:
    """A user with four events and no candidates."""
    items = np.arange(4, dtype=np.int64) + number % 7
    return Visit(1_000_000 + number, items, np.zeros(4, np.int32), 4, np.empty(0, np.int64))


def main(argv: Sequence[str] | None = None) -> int:
    return run("scale", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
