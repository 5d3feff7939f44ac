"""What a model takes of memory, said at start-up: the paper's Appendix C, beside what the system says."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mtserve_backend.cache.records import Geometry
from mtserve_backend.config import Config
from mtserve_backend.models.contract import RankingModel
from mtserve_backend.sizes import Size
from mtserve_backend.transfer.pools import PoolError, Pools

log = logging.getLogger(__name__)

# Score tiles, allocator slack and what torch keeps for itself, whatever the model.
WORKBENCH_BASE_BYTES = 48 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes. Pools and weights are there from the start; the workbench and the logs are what requests may add."""

    primary: int
    onload: int
    host: int
    weights: int
    workbench: int
    uncached: int
    user_logs: int

    @property
    def requests(self) -> int:
        """The most that requests take beside pools and weights, on the device."""
        return self.workbench + self.uncached

    def __str__(self) -> str:
        return (
            f"device cache {_mib(self.primary)}, onload buffer {_mib(self.onload)}, host cache {_mib(self.host)}, "
            f"weights {_mib(self.weights)}, workbench up to {_mib(self.workbench)} and {_mib(self.uncached)} more "
            f"while a history is computed uncached, user logs up to {_mib(self.user_logs)}"
        )


def footprint(
    model: RankingModel, weight_bytes: int, geometry: Geometry, pools: Pools, config: Config, dtype: torch.dtype
) -> Footprint:
    """Of a model whose pools are allocated. The last two of the workbench's sizes are upper bounds."""
    pages = geometry.device_pages + geometry.onload_pages
    page_bytes = pools.device_bytes // pages if pages else 0
    rows = min(model.window.max_history, config.max_events) + config.max_candidates
    return Footprint(
        primary=geometry.device_pages * page_bytes,
        onload=geometry.onload_pages * page_bytes,
        host=pools.host_bytes,
        weights=weight_bytes,
        workbench=config.pass_tokens * model.row_values * dtype.itemsize + WORKBENCH_BASE_BYTES,
        uncached=rows * model.uncached_row_values * dtype.itemsize,
        user_logs=Size.parse(config.user_log).amount,
    )


def weight_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))


@dataclass(frozen=True)
class DeviceMemory:
    """What a GPU and torch's allocator say, in bytes."""

    name: str
    total: int
    free: int
    reserved: int

    @classmethod
    def of(cls, device: torch.device) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info(device)
        return cls(f"{device} ({torch.cuda.get_device_name(device)})", total, free, torch.cuda.memory_reserved(device))


def report_process(planned: Footprint, resident: int | None) -> None:
    """On a CPU all of it is the process's: log how large it is, and how large it will be at most."""
    if resident is not None:
        peak = resident + planned.requests + planned.user_logs
        log.info("memory of this process: %s now, at most %s", _mib(resident), _mib(peak))


def report_device(planned: Footprint, memory: DeviceMemory) -> None:
    """Log the plan beside what the device reports. Raises `PoolError` if no slice of work would fit beside the pools.

    Memory that torch has reserved and not handed out serves requests as well as free memory does.
    """
    held = planned.primary + planned.onload + planned.weights
    room = memory.free + max(0, memory.reserved - held)
    log.info(
        "memory of %s: pools and weights %s, torch holds %s; free %s of %s; requests take at most %s",
        memory.name, _mib(held), _mib(memory.reserved), _mib(memory.free), _mib(memory.total), _mib(planned.requests),
    )  # fmt: skip
    if room < planned.workbench:
        raise PoolError(
            f"beside the pools {_mib(room)} are left on {memory.name}, and a slice of pass_tokens rows takes up to "
            f"{_mib(planned.workbench)}: lower device_cache, onload_buffer or pass_tokens"
        )
    if room < planned.requests:
        log.warning(
            "a history that is computed uncached may need %s on %s, where %s are left: such a request can fail; "
            "lower device_cache or max_events",
            _mib(planned.requests), memory.name, _mib(room),
        )  # fmt: skip


def resident_bytes() -> int | None:
    """Of this process, now; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
