"""Streams of every kind there is, and pools with a different value in every slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event as Gate

import pytest
import torch

from mtserve_backend.transfer.cuda_streams import HostedCudaStream
from mtserve_backend.transfer.streams import CpuStream, Stream, WaitTimeout

WAIT_LIMIT_S = 0.2
# Long enough for a loaded machine; a test that needs all of it has failed.
PATIENCE_S = 20.0

KINDS: dict[str, Callable[[str], Stream]] = {"cpu": lambda name: CpuStream(name, WAIT_LIMIT_S)}
if torch.cuda.is_available():
    KINDS["cuda"] = lambda name: HostedCudaStream(name, torch.device("cuda", 0), WAIT_LIMIT_S)


@pytest.fixture
def gates() -> Iterator[Callable[[], Gate]]:
    """Gates that hold work back until they are set; all are, when the test ends."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate())
        return made[-1]

    yield make
    for gate in made:
        gate.set()


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, gates: Callable[[], Gate]) -> Iterator[Callable[..., Stream]]:
    """Streams of one kind, closed when the test ends (the gates open after that: work may still be held then)."""
    made: list[Stream] = []

    def make(name: str = "stream") -> Stream:
        made.append(KINDS[request.param](name))
        return made[-1]

    yield make
    for stream in made:
        try:
            stream.close(0.01)
        except WaitTimeout:
            continue
