"""Fixtures with the real tritonserver. The marker `server` is put on every test in this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer
from tests.server.echo import write_echo

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The shipped model: 1,683 items, 6 actions, histories of up to 1,024 tokens."""
    return repository.shipped() / repository.MODEL / "1" / "weights"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The shipped repository, served; with small pools and one thread, because tests run beside each other."""
    folder = tmp_path_factory.mktemp("repository")
    small = {"device_cache": "16MiB", "onload_buffer": "4MiB", "host_cache": "32MiB", "threads": "1"}
    repository.write_model(folder, parameters=small)
    # A test that forgets to close its HTTP client makes the stop wait as long as this.
    with EmbeddedServer(folder, exit_timeout=10) as running:
        yield running


@pytest.fixture
def echo_repository(tmp_path: Path) -> Path:
    """A model repository with the echo model."""
    return write_echo(tmp_path / "repository")
