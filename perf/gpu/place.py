"""The device that is measured, the sizes it is measured at, and how work on it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mtserve_backend.models.config import HSTUConfig
from perf.paper_model import CONFIG

# Spins of a GPU's clock, some five milliseconds: launching a kernel takes longer than the shortest kernels themselves.
HEAD_START = 10_000_000

SMALL = HSTUConfig(
    layers=2, heads=2, head_dim=16, hidden=32, items=100, actions=8, max_history=512, attention_n=16, tasks=("click",)
)


@dataclass(frozen=True)
class Scale:
    """`full` is the paper's model at its lengths; `small` runs every line of the same code in seconds.

    `busy` is the batch at which kernels and transfers are measured beside batch 1.
    """

    model: HSTUConfig
    history: int
    new: int
    candidates: int
    page_tokens: int
    chunk_tokens: int
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    busy: int
    copied_bytes: int
    product: int
    repeats: int


SCALES = {
    "full": Scale(CONFIG, 6_400, 64, 64, 32, 1_024, (1_024, 6_400), (1, 4, 8, 16), 8, 1 << 30, 8_192, 15),
    "small": Scale(SMALL, 96, 4, 4, 4, 16, (16, 96), (1, 2), 2, 1 << 20, 128, 3),
}


@dataclass(frozen=True)
class Place:
    """Where and how large. On a CPU values are float32: its 16-bit products are not worth measuring."""

    device: torch.device
    scale: Scale

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_gpu else torch.float32

    def aim(self, value: float) -> float | None:
        """What is aimed at on a GPU, at full scale; elsewhere nothing is."""
        return value if self.on_gpu and self.scale is SCALES["full"] else None

    def settle(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], calls: int = 1) -> list[float]:
        """Of one of `calls` calls in a row, measured `repeats` times after two that warm up.

        On a GPU by the device's own clock, and without launching: the device spins until the calls are in its queue.
        """
        taken = [self._once(work, calls) / calls for _ in range(self.scale.repeats + 2)]
        return taken[2:]

    def _once(self, work: Callable[[], object], calls: int) -> float:
        self.settle()
        if not self.on_gpu:
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            return time.perf_counter() - begin
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(calls):
            work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def place(device: str, scale: str) -> Place:
    """Raises `RuntimeError` with a sentence if the device is not there."""
    where = torch.device(device)
    if where.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} sees no GPU here; try `--device cpu --scale small`")
        where = torch.device("cuda", where.index or 0)
        torch.cuda.set_device(where)
    return Place(where, SCALES[scale])
