"""Page-locking in pieces: all or nothing, and never silently."""

from __future__ import annotations

import logging

import pytest
import torch

from mtserve_backend.transfer.pinning import page_lock


class Runtime:
    """Registers as CUDA's runtime would, until the memory that may be locked is used up."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.locked: dict[int, int] = {}

    def register(self, address: int, size: int) -> int:
        if sum(self.locked.values()) + size > self.limit:
            return 2
        assert address not in self.locked
        self.locked[address] = size
        return 0

    def unregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.mark.parametrize("piece", [1, 7, 100, 4000, 4001])
def test_every_byte_is_registered_once(piece: int) -> None:
    memory, runtime = torch.zeros(10, 100), Runtime(10**6)
    assert page_lock(memory, runtime, piece)
    ends = [memory.data_ptr()]
    for address, size in sorted(runtime.locked.items()):
        assert address == ends[-1]
        assert 0 < size <= piece
        ends.append(address + size)
    assert ends[-1] == memory.data_ptr() + 4000


def test_what_cannot_be_locked_is_given_back_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(limit=2500)
    with caplog.at_level(logging.WARNING):
        assert not page_lock(torch.zeros(1000), runtime, 1000)
    assert not runtime.locked
    assert "CUDA error 2 after 2000 bytes" in caplog.text
    assert "host_memory" in caplog.text
