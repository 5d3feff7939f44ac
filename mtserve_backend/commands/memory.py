"""How much memory a model's pools will take, and how much there is. Worked out without importing torch."""

import re
from pathlib import Path

from mtserve_backend.config import Config
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.sizes import Size

_BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "float16": 2}


def token_bytes(model: HSTUConfig, dtype: str) -> int:
    """What the state of one history token takes: a key and a value of every head of every layer."""
    return 2 * model.layers * model.heads * model.head_dim * _BYTES_PER_NUMBER[dtype]


def pool_bytes(knobs: Config, model: HSTUConfig, on_gpu: bool) -> int:
    """Host memory that one model's pools take. On a GPU the device's pools are elsewhere."""
    token = token_bytes(model, knobs.dtype)

    def pool(size: str, slot_tokens: int) -> int:
        slots = Size.parse(size).slots(slot_tokens, knobs.page_tokens, knobs.chunk_tokens, token)
        return slots * slot_tokens * token

    total = Size.parse(knobs.user_log).amount
    if knobs.cache_mode != "recompute" and not on_gpu:
        total += pool(knobs.device_cache, knobs.page_tokens)
    if knobs.cache_mode == "hierarchical":
        total += pool(knobs.host_cache, knobs.chunk_tokens)
        total += 0 if on_gpu else pool(knobs.onload_buffer, knobs.page_tokens)
    return total


def available_memory() -> int:
    """What may still be taken: of the machine, or of the container where that has less."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = int(match[1]) * 1024 if match else 0
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (value := limit.read_text(encoding="ascii").strip()) != "max":
        free = min(free, max(0, int(value) - int(used.read_text(encoding="ascii"))))
    return free
