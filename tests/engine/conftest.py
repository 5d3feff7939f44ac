from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtserve_backend.engine import Engine
from mtserve_backend.models.hstu import HSTU
from tests.engine import worlds


@pytest.fixture(scope="session", params=["target", "next_item"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[HSTU, Path]:
    folder = tmp_path_factory.mktemp(f"lively_{request.param}")
    return worlds.lively_model(folder, request.param), folder


@pytest.fixture
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Engines that are closed, drained and audited when the test ends."""
    engines: list[Engine] = []

    def start(folder: Path, **knobs: object) -> Engine:
        engines.append(worlds.engine(folder, **knobs))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close(10)
        engine.moves.take_in()
        engine.manager.check()
        assert not engine.manager.tasks, "transfers never completed"
