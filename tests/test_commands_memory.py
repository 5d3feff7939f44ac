"""`mtserve doctor`'s estimate of memory."""

import pytest

from mtserve_backend.commands.memory import available_memory, pool_bytes, token_bytes
from mtserve_backend.config import Config
from mtserve_backend.models.config import HSTUConfig

MODEL = HSTUConfig(layers=8, heads=4, head_dim=128, hidden=256, items=10, actions=2, max_history=100)
TOKEN = 32768


def test_bytes_of_a_token() -> None:
    assert token_bytes(MODEL, "float32") == TOKEN == 2 * token_bytes(MODEL, "bfloat16")


@pytest.mark.parametrize(
    ("mode", "on_gpu", "pools"),
    [
        ("hierarchical", False, 3 * 256 * TOKEN + 2 * 256 * TOKEN + (1 << 30)),
        ("device", False, 3 * 256 * TOKEN),
        ("recompute", False, 0),
        ("hierarchical", True, 1 << 30),
    ],
)
def test_pools(mode: str, on_gpu: bool, pools: int) -> None:
    knobs = Config.from_parameters(
        {
            "cache_mode": mode,
            "page_tokens": "256",
            "device_cache": "1000 tokens",  # of which three pages are whole
            "onload_buffer": "2 pages",
            "host_cache": "1GiB",
            "user_log": "1MiB",
        }
    )
    assert pool_bytes(knobs, MODEL, on_gpu) == pools + (1 << 20)


def test_there_is_memory() -> None:
    assert available_memory() > 0
