"""The memory itself: one device tensor of pages and one host tensor of chunks, allocated once and touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from mtserve_backend.cache.records import Geometry
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.transfer.pinning import CudaRegistrar, page_lock


class PoolError(MemoryError):
    """A pool does not fit; the message holds the sizes asked for and available."""


@dataclass(frozen=True)
class Pools:
    """`device`: `[layers, pages, 2, heads, page_tokens, head_dim]`, primary pages first, then the onload buffer's.

    `host`: `[chunks, layers, chunk_pages, 2, heads, page_tokens, head_dim]`: contiguous per chunk (one disk or network
    write) and per layer (one DMA), in whole pages, so that every transfer between the tiers is a plain copy.
    """

    device: torch.Tensor
    host: torch.Tensor
    pinned: bool

    @classmethod
    def allocate(
        cls, geometry: Geometry, kv: KVShape, device: torch.device, dtype: torch.dtype, pinned: bool = True
    ) -> Pools:
        """With `pinned` the host pool is page-locked where there is a bus to cross; `.pinned` says whether it could be.

        Raises `PoolError`.
        """
        page = (2, kv.heads, geometry.page_tokens, kv.head_dim)
        device_shape = (kv.layers, geometry.device_pages + geometry.onload_pages, *page)
        host_shape = (geometry.host_chunks, kv.layers, geometry.chunk_pages, *page)
        on_host = {"host_cache": _bytes(host_shape, dtype)}
        on_device = {"device_cache + onload_buffer": _bytes(device_shape, dtype)}
        if device.type == "cpu":
            _check_room("memory", {**on_host, **on_device}, _available_memory())
        else:
            _check_room("memory", on_host, _available_memory())
            _check_room(f"the memory of {device}", on_device, torch.cuda.mem_get_info(device)[0])
        try:
            # Written once, so that memory that cannot be had is missed at start-up and not on a user's request.
            on_it = torch.zeros(device_shape, dtype=dtype, device=device).fill_(0)
            host = torch.zeros(host_shape, dtype=dtype).fill_(0)
        except RuntimeError as error:
            raise PoolError(f"the pools could not be allocated: {error}") from error
        if device.type == "cuda" and pinned:
            pinned = page_lock(host, CudaRegistrar())
        return cls(on_it, host, pinned)

    @property
    def device_bytes(self) -> int:
        return self.device.numel() * self.device.element_size()

    @property
    def host_bytes(self) -> int:
        return self.host.numel() * self.host.element_size()

    def staging(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two page-locked buffers of one layer of a chunk each."""
        shape, device = tuple(self.host.shape[2:]), self.device.device
        first, second = (
            torch.zeros(shape, dtype=self.host.dtype, pin_memory=device.type == "cuda").fill_(0) for _ in range(2)
        )
        return first, second


def _check_room(where: str, wanted: dict[str, int], available: int | None) -> None:
    if available is not None and sum(wanted.values()) > available:
        asked = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in wanted.items())
        raise PoolError(f"the pools do not fit into {where}: {asked}; available {available / 2**20:,.0f} MiB")


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * dtype.itemsize


def _available_memory() -> int | None:
    """Bytes the kernel says can be had without swapping; None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None
