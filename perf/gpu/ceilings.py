"""What the machine can do at best: copies and products of plain torch, measured beside everything else."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch

from perf.gpu.figures import Figure, of_rates
from perf.gpu.place import Place


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second of device memory (read and written together) and of the link each way; operations a second."""

    memory: float
    to_device: float
    to_host: float
    operations: float


def measure(place: Place) -> tuple[Ceilings, list[Figure]]:
    size = place.scale.copied_bytes
    one, other = (torch.empty(size, dtype=torch.uint8, device=place.device).fill_(1) for _ in range(2))
    host = torch.empty(size, dtype=torch.uint8, pin_memory=place.on_gpu).fill_(1)
    n = place.scale.product
    a, b = (torch.randn(n, n, device=place.device, dtype=place.dtype) for _ in range(2))
    memory = place.seconds(lambda: other.copy_(one))
    to_device = place.seconds(lambda: one.copy_(host, non_blocking=True))
    to_host = place.seconds(lambda: host.copy_(one, non_blocking=True))
    products = place.seconds(lambda: torch.mm(a, b))
    operations = 2.0 * n**3
    rates = [operations / taken / 1e12 for taken in products]
    figures = [
        of_rates("copy, device to device (read + written)", 2.0 * size, memory),
        of_rates("copy, host to device, page-locked", size, to_device),
        of_rates("copy, device to host, page-locked", size, to_host),
        Figure(f"product of {n:,} x {n:,} matrices", median(rates), "TFLOP/s", min(rates), max(rates)),
    ]
    ceilings = Ceilings(
        2.0 * size / median(memory), size / median(to_device), size / median(to_host), operations / median(products)
    )
    return ceilings, figures


def run(place: Place) -> list[Figure]:
    return measure(place)[1]
