"""Everything here is in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.interpreter import kernels_on_the_cpu


@pytest.fixture(autouse=True, scope="session")
def _kernels_on_the_cpu() -> Iterator[None]:
    with kernels_on_the_cpu():
        yield
