"""Fixtures with the real tritonserver. The marker `server` is put on every test in this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models import weights as model_weights
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from tests.server.echo import write_echo

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model: 1,000 items, 4 actions, histories of up to 1,024 tokens."""
    torch.manual_seed(0)
    config = HSTUConfig(
        layers=2, heads=2, head_dim=16, hidden=32, items=1000, actions=4, max_history=1024, tasks=("click",)
    )
    folder = tmp_path_factory.mktemp("weights")
    model_weights.save(HSTU(config), folder)
    return folder


@pytest.fixture(scope="session")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The shipped repository's model with those weights, served."""
    folder = tmp_path_factory.mktemp("repository")
    small = {"device_cache": "16MiB", "onload_buffer": "4MiB", "host_cache": "32MiB", "threads": "1"}
    repository.write_model(folder, weights_dir=weights, parameters=small)
    # A test that forgets to close its HTTP client makes the stop wait as long as this.
    with EmbeddedServer(folder, exit_timeout=10) as running:
        yield running


@pytest.fixture
def echo_repository(tmp_path: Path) -> Path:
    """A model repository with the echo model."""
    return write_echo(tmp_path / "repository")
