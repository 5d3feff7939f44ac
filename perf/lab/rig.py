"""Builds what is measured: a random model of the preset's size, and engines or a server with it under several names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mtserve_backend.models.config import HSTUConfig
from perf.lab.presets import SMOKE, Preset
from perf.paper_model import write_paper_model
from perf.traffic.engine import EngineTarget
from perf.traffic.server import SETTLE_S, ServerTarget, targets

# Its states are a hundredth as large.
SMOKE_SETTLE_S = 0.02


@contextmanager
def model_folder(config: HSTUConfig, seed: int) -> Iterator[Path]:
    """Random weights of this size, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="mtserve-model-") as folder:
        yield write_paper_model(Path(folder), seed, config)


@contextmanager
def engines(folder: Path, models: Mapping[str, Mapping[str, str]], device: str) -> Iterator[dict[str, EngineTarget]]:
    """Each in a process of its own. Raises `TargetFailed`."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(EngineTarget(folder, knobs, device)) for name, knobs in models.items()}


@contextmanager
def through(
    way: str, folder: Path, models: Mapping[str, Mapping[str, str]], preset: Preset, batch: int = 1
) -> Iterator[Mapping[str, EngineTarget | ServerTarget]]:
    """`way`: "server" for one real Triton server with all models, "engine" for engines without one."""
    if way == "engine":
        with engines(folder, models, preset.device) as found:
            yield found
    else:
        config = "gpu" if preset.device == "cuda" else "cpu"
        with targets(folder, models, config, batch, SMOKE_SETTLE_S if preset is SMOKE else SETTLE_S) as served:
            yield served
