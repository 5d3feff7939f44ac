"""`mtserve doctor`'s estimate of memory."""

import json
from pathlib import Path

import pytest

from mtserve_backend.commands.memory import available_memory, pool_bytes, token_bytes


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"layers": 8, "heads": 4, "head_dim": 128}))
    return tmp_path


def test_bytes_of_a_token(weights: Path) -> None:
    assert token_bytes(weights, 4) == 32768
    (weights / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="does not describe a model"):
        token_bytes(weights, 4)


@pytest.mark.parametrize(
    ("mode", "on_gpu", "expected"),
    [
        ("hierarchical", False, 100 * 32768 + 2 * 256 * 32768 + (1 << 30)),
        ("device", False, 100 * 32768 + 2 * 256 * 32768),
        ("recompute", False, 0),
        ("hierarchical", True, 1 << 30),
    ],
)
def test_pools(weights: Path, mode: str, on_gpu: bool, expected: int) -> None:
    sizes = {"device_cache": "100 tokens", "onload_buffer": "2 pages", "host_cache": "1GiB", "page_tokens": "256"}
    assert pool_bytes(sizes | {"cache_mode": mode}, weights, on_gpu) == expected


@pytest.mark.parametrize("size", ["", "GiB", "1 GiBs", "-1GiB", "lots"])
def test_sizes_that_make_no_sense(weights: Path, size: str) -> None:
    with pytest.raises(ValueError, match=r"host_cache = .* is not a size"):
        pool_bytes({"host_cache": size}, weights, on_gpu=True)


def test_there_is_memory() -> None:
    assert available_memory() > 0
