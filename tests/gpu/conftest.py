"""The suite for a GPU: `make test-gpu`. Without one it is left out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.gpu.place import ASKED, INTERPRETED

REASON = "no GPU here (MTSERVE_GPU_SUITE_ON=cpu tries the suite itself)"
NONE_HERE = ASKED == "cuda" and not torch.cuda.is_available()
# Spins of a device's clock that make a second, roughly: how long a delay is does not matter, that there is one does.
SPINS_A_SECOND = 1.5e9


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.gpu)
            if NONE_HERE:
                item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def where() -> torch.device:
    return torch.device("cuda", 0) if ASKED == "cuda" else torch.device(ASKED)


@pytest.fixture
def stall(where: torch.device) -> Callable[[float], None]:
    """Make the current stream late: on a GPU by a kernel that spins there, and the thread that issues by a little."""
    if where.type != "cuda":
        return time.sleep

    def spin(seconds: float) -> None:
        time.sleep(seconds / 4)
        torch.cuda._sleep(int(seconds * SPINS_A_SECOND))

    return spin


@pytest.fixture(autouse=True, scope="session")
def _interpreted_kernels() -> Iterator[None]:
    """On a CPU in a process with TRITON_INTERPRET=1 the kernels are what runs."""
    if not INTERPRETED:
        yield
        return
    from tests.kernels.interpreter import kernels_on_the_cpu

    with kernels_on_the_cpu():
        yield
