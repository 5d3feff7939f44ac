"""`python -m perf.floors`: what a request of the paper's model must move and multiply at least. A calculation.

For each stage its floating-point operations and its bytes (device memory, or the link to the host), and from the
vendor's published peaks the time below which no implementation can be: the larger of the two; and what the stage may
cost, which is that time over the share of the peak that is aimed at. Then what a load takes longer than the compute
beside it, which is waited for. A user's state is
`layers * 2 * heads * head_dim` values a token; a multiplication and an addition are two operations.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mtserve_backend.models.config import HSTUConfig
from perf.paper_model import CONFIG

WAYS = ("recompute", "device hit", "host hit")
# Shares of the peak to be reached: of attention, copying kernels and the link as the project aims at them; of plain
# matrix products what vendors' libraries reach at such sizes, an assumption.
PRODUCTS, ATTENTION, COPIES, LINK = 0.7, 0.5, 0.8, 0.85
# Of the core step (the layers, and waiting for their keys) the most that should be waiting.
WAITING = 0.10


@dataclass(frozen=True)
class Device:
    """Peaks by the vendor's data sheets: dense bf16 operations a second, bytes a second of memory and host link."""

    name: str
    operations: float
    memory: float
    link: float


A100 = Device("A100 80 GB (SXM, PCIe 4.0 x16)", 312e12, 2.039e12, 31.5e9)
H200 = Device("H200 (SXM, PCIe 5.0 x16)", 989e12, 4.8e12, 63.0e9)


@dataclass(frozen=True)
class Request:
    """Tokens known before, new ones, candidates; `batch` such requests together."""

    history: int = 6_400
    new: int = 64
    candidates: int = 64
    batch: int = 1


@dataclass(frozen=True)
class Stage:
    """Totals over all layers and requests. `linked` bytes cross to or from the host, beside the compute.

    `aim` is the share of the peak that an implementation should reach; a stage `behind` the answer delays nobody.
    """

    name: str
    aim: float
    operations: float = 0.0
    moved: float = 0.0
    linked: float = 0.0
    behind: bool = False

    def seconds(self, device: Device) -> float:
        """The least time the stage takes."""
        return max(self.operations / device.operations, self.moved / device.memory, self.linked / device.link)

    def allowed(self, device: Device) -> float:
        """What it may take."""
        return self.seconds(device) / self.aim


def stages(model: HSTUConfig, request: Request, way: str, value_bytes: int = 2) -> list[Stage]:
    """What a batch costs when its histories are recomputed, on the device, or on the host only."""
    inner, hidden, layers, b = model.heads * model.head_dim, model.hidden, model.layers, request.batch
    known = 0 if way == "recompute" else request.history
    fresh = request.history + request.new - known
    length, rows = request.history + request.new, fresh + request.candidates
    pairs = fresh * known + fresh * (fresh + 1) // 2 + request.candidates * (length + 1)
    token_bytes = layers * 2 * inner * value_bytes

    def linear(name: str, inputs: int, outputs: int) -> Stage:
        moved = inputs * outputs + b * rows * (inputs + outputs)
        return Stage(name, PRODUCTS, layers * 2.0 * b * rows * inputs * outputs, layers * moved * value_bytes)

    found = [
        linear("projections", hidden, 4 * inner),
        Stage(
            "attention",
            ATTENTION,
            layers * b * pairs * 4.0 * inner,
            b * (length * token_bytes + layers * rows * 2 * inner * value_bytes),
        ),
        linear("output", inner, hidden),
        Stage("append", COPIES, moved=b * 2.0 * fresh * token_bytes),
    ]
    if way == "host hit":
        found.append(Stage("onload", LINK, linked=float(b * known * token_bytes)))
        found.append(Stage("scatter", COPIES, moved=b * 2.0 * known * token_bytes, behind=True))
    saved = b * fresh * token_bytes
    found.append(Stage("offload", LINK, moved=2.0 * saved, linked=float(saved), behind=True))
    return found


def floor(found: Sequence[Stage], device: Device, allowed: bool = False) -> float:
    """Seconds from request to scores at least: compute, or the onload if that is longer and all else beside it.

    With `allowed`, what it may take.
    """

    def seconds(stage: Stage) -> float:
        return stage.allowed(device) if allowed else stage.seconds(device)

    ahead = [stage for stage in found if not stage.behind]
    compute = sum(seconds(stage) for stage in ahead if not stage.linked)
    return max([compute, *(seconds(stage) for stage in ahead if stage.linked)])


@dataclass(frozen=True)
class Wait:
    """Seconds that a batch's compute and its loads may take; side by side, so the rest of a load is waited for.

    That is the least: a layer also waits for its own keys while later ones are still on their way.
    """

    compute: float
    load: float

    @classmethod
    def of(cls, model: HSTUConfig, request: Request, loaded: int, device: Device) -> Wait:
        """`loaded` of the batch's histories come from the host, the others are on the device."""
        ahead = [stage for stage in stages(model, request, "host hit") if not stage.behind]
        compute = sum(stage.allowed(device) for stage in ahead if not stage.linked)
        load = sum(stage.allowed(device) for stage in ahead if stage.linked)
        return cls(compute, load * loaded / request.batch)

    @property
    def seconds(self) -> float:
        return max(0.0, self.load - self.compute)

    @property
    def share(self) -> float:
        """Of the core step."""
        return self.seconds / (self.compute + self.seconds)


def most_loaded(model: HSTUConfig, request: Request, device: Device) -> float:
    """The part of a batch's history that may be loaded before the waiting is over `WAITING`."""
    wait = Wait.of(model, request, request.batch, device)
    return wait.compute / (1 - WAITING) / wait.load


def waits(model: HSTUConfig, batches: Sequence[int], devices: Sequence[Device]) -> str:
    """A Markdown table: what is left to wait for with so many of a batch's users loaded."""
    head = ["batch", "device", "users loaded", "compute may cost, ms", "onload may cost, ms", "waiting, ms"]
    head += ["of the core step", f"at most {WAITING:.0%} if no more is loaded than"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for batch in batches:
        request = Request(batch=batch)
        for device in devices:
            most = f"{most_loaded(model, request, device):.1%} of the history"
            for loaded in sorted({1, -(-batch * 3 // 8), batch}):
                wait = Wait.of(model, request, loaded, device)
                times = [f"{1e3 * seconds:.3f}" for seconds in (wait.compute, wait.load, wait.seconds)]
                cells = [str(batch), device.name, str(loaded), *times, f"{wait.share:.0%}", most]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(model: HSTUConfig, batches: Sequence[int], devices: Sequence[Device]) -> str:
    """A Markdown table: a row for each stage and one for the whole, with each device's floor and what it may cost."""
    head = ["batch", "way", "stage", "GFLOP", "MB moved", "MB over the link", "aim"]
    head += [f"{device.name}, ms" for device in devices] + [f"{device.name}, may cost, ms" for device in devices]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for batch in batches:
        for way in WAYS:
            found = stages(model, Request(batch=batch), way)
            for stage in found:
                name = f"{stage.name}, behind" if stage.behind else stage.name
                cells = [f"{stage.operations / 1e9:,.1f}", f"{stage.moved / 1e6:,.1f}", f"{stage.linked / 1e6:,.1f}"]
                times = [stage.seconds(device) for device in devices] + [stage.allowed(device) for device in devices]
                timed = [f"{1e3 * seconds:.3f}" for seconds in times]
                lines.append("| " + " | ".join([str(batch), way, name, *cells, f"{stage.aim:.0%}", *timed]) + " |")
            times = [floor(found, device, allowed) for allowed in (False, True) for device in devices]
            timed = [f"**{1e3 * seconds:.3f}**" for seconds in times]
            lines.append("| " + " | ".join([str(batch), way, "**in all**", "", "", "", "", *timed]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perf.floors",
        description=__doc__,
        epilog="example: python -m perf.floors --batches 1 8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], metavar="N", help="requests at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    arguments = parser.parse_args(argv)
    if min(arguments.batches) < 1:
        parser.error("a batch has at least one request")
    print(table(CONFIG, arguments.batches, (A100, H200)))
    print(f"\n{waits(CONFIG, arguments.batches, (A100, H200))}")
    if arguments.json:
        result = {
            f"batch {batch}, {way}": {
                "stages": [asdict(stage) for stage in stages(CONFIG, Request(batch=batch), way)],
                "floor_s": {d.name: floor(stages(CONFIG, Request(batch=batch), way), d) for d in (A100, H200)},
            }
            for batch in arguments.batches
            for way in WAYS
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
