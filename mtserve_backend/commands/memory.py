"""How much memory the configured pools take, and how much there is. Estimates, made without importing
torch.
"""

import json
import re
from pathlib import Path

_UNITS = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 1000,
    "mb": 10**6,
    "gb": 10**9,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def pool_bytes(parameters: dict[str, str], weights: Path, on_gpu: bool) -> int:
    """Host memory that one model's pools take. On a GPU only the host's pool counts. ValueError: a size
    makes no sense.
    """
    mode = parameters.get("cache_mode", "hierarchical")
    names = [] if on_gpu or mode == "recompute" else ["device_cache", "onload_buffer"]
    if mode == "hierarchical":
        names.append("host_cache")
    token = token_bytes(weights, bytes_per_number=2 if on_gpu else 4)
    page = token * int(parameters.get("page_tokens", "1"))
    return sum(_bytes(name, parameters[name], page=page, token=token) for name in names if name in parameters)


def token_bytes(weights: Path, bytes_per_number: int) -> int:
    """What the state of one history token takes: a key and a value of every head of every layer."""
    config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
    try:
        return int(2 * config["layers"] * config["heads"] * config["head_dim"] * bytes_per_number)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{weights / 'config.json'} does not describe a model of mtserve: no {error}") from error


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


def _bytes(name: str, size: str, page: int, token: int) -> int:
    match = _SIZE.fullmatch(size)
    if match is not None:
        units = _UNITS | {"pages": page, "page": page, "tokens": token, "token": token}
        factor = units.get(match[2].lower())
        if factor is not None:
            return int(float(match[1]) * factor)
    raise ValueError(f"{name} = '{size}' is not a size: write it as 1GiB, '4096 pages' or '100000 tokens'.")
