"""`python -m perf.floors`: what a request of the paper's model must move and multiply at least. A calculation.

For each stage its floating-point operations and its bytes (device memory, or the link to the host), and from the
vendor's published peaks the time below which no implementation can be: the larger of the two. A user's state is
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
    """Totals over all layers and requests. `linked` bytes cross to or from the host, beside the compute."""

    name: str
    operations: float = 0.0
    moved: float = 0.0
    linked: float = 0.0

    def seconds(self, device: Device) -> float:
        """The least time the stage takes."""
        return max(self.operations / device.operations, self.moved / device.memory, self.linked / device.link)


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
        return Stage(name, layers * 2.0 * b * rows * inputs * outputs, layers * moved * value_bytes)

    found = [
        linear("projections", hidden, 4 * inner),
        Stage(
            "attention",
            layers * b * pairs * 4.0 * inner,
            b * (length * token_bytes + layers * rows * 2 * inner * value_bytes),
        ),
        linear("output", inner, hidden),
        Stage("append", moved=b * 2.0 * fresh * token_bytes),
    ]
    if way == "host hit":
        found.append(Stage("onload", linked=float(b * known * token_bytes)))
        found.append(Stage("scatter, behind", moved=b * 2.0 * known * token_bytes))
    found.append(Stage("offload, behind", moved=b * 2.0 * fresh * token_bytes, linked=float(b * fresh * token_bytes)))
    return found


def floor(found: Sequence[Stage], device: Device) -> float:
    """Seconds from request to scores at least: compute, or the onload if that is longer and all else beside it."""
    ahead = [stage for stage in found if "behind" not in stage.name]
    compute = sum(stage.seconds(device) for stage in ahead if not stage.linked)
    return max([compute, *(stage.seconds(device) for stage in ahead if stage.linked)])


def table(model: HSTUConfig, batches: Sequence[int], devices: Sequence[Device]) -> str:
    """A Markdown table: a row for each stage, and one for the whole."""
    head = ["batch", "way", "stage", "GFLOP", "MB moved", "MB over the link", *(f"{d.name}, ms" for d in devices)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for batch in batches:
        for way in WAYS:
            found = stages(model, Request(batch=batch), way)
            for stage in found:
                cells = [f"{stage.operations / 1e9:,.1f}", f"{stage.moved / 1e6:,.1f}", f"{stage.linked / 1e6:,.1f}"]
                times = [f"{1e3 * stage.seconds(device):.3f}" for device in devices]
                lines.append("| " + " | ".join([str(batch), way, stage.name, *cells, *times]) + " |")
            times = [f"**{1e3 * floor(found, device):.3f}**" for device in devices]
            lines.append("| " + " | ".join([str(batch), way, "**floor**", "", "", "", *times]) + " |")
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
