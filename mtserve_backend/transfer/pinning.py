"""Page-locking host memory that is there already, so that the device's copy engines may read and write it.

The system's own allocation of locked memory rounds up to a power of two, and one registration of half a terabyte fails:
memory is allocated plainly, touched, and registered in pieces. A registration that fails leaves an error behind in the
runtime, which must not be mistaken for the next call's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import torch

log = logging.getLogger(__name__)

PIECE_BYTES = 64 << 30


class Registrar(Protocol):
    """The two calls of CUDA's runtime; 0 is success."""

    def register(self, address: int, size: int) -> int: ...

    def unregister(self, address: int) -> int: ...


class CudaRegistrar:
    """torch's binding of them."""

    def register(self, address: int, size: int) -> int:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = int(runtime.cudaHostRegister(address, size, 0))
        if status:
            _clear_error()
        return status

    def unregister(self, address: int) -> int:
        return int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]


def page_lock(memory: torch.Tensor, registrar: Registrar, piece_bytes: int = PIECE_BYTES) -> bool:
    """Register all of a contiguous host tensor, or none of it: False, with the reason logged."""
    done: list[int] = []
    for address, size in _pieces(memory, piece_bytes):
        status = registrar.register(address, size)
        if status:
            log.warning(
                "the host cache of %d bytes could not be page-locked (CUDA error %d after %d bytes): it is copied "
                "through staging buffers, which is slower; raise the memlock limit, or set host_memory to pageable",
                memory.nbytes, status, address - memory.data_ptr(),
            )  # fmt: skip
            for registered in done:
                registrar.unregister(registered)
            return False
        done.append(address)
    return True


def _pieces(memory: torch.Tensor, piece_bytes: int) -> Iterator[tuple[int, int]]:
    start, size = memory.data_ptr(), memory.nbytes
    for offset in range(0, size, piece_bytes):
        yield start + offset, min(piece_bytes, size - offset)


def _clear_error() -> None:
    """The runtime keeps a failed call's error for whoever asks next, and a launch asks: let one of no use be told."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        log.debug("cleared the error that a failed registration left behind")
