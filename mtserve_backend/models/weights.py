"""A model folder: config.json and model.safetensors. Loaded without pickle, checked key by key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.models.tensor_file import TensorFile, TensorFileError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class WeightsError(ValueError):
    """The weights do not fit the configuration; the message lists missing, unexpected and mis-shaped keys."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve, and the digest that is part of every cached state's identity."""

    model: HSTU
    digest: str
    folder: Path


def save(model: HSTU, folder: Path) -> None:
    """Write config.json and model.safetensors into `folder`, which is made if need be."""
    # Imported here: a server, which only reads, need not have it.
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(model.config.to_json(), indent=2) + "\n", encoding="utf-8")
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / WEIGHTS_FILE)
    # safetensors leaves it to the owner alone; a server in a container is another user.
    (folder / WEIGHTS_FILE).chmod(0o644)


def load(folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Read a model folder. Raises `ModelConfigError` or `WeightsError`."""
    config = HSTUConfig.read(folder / CONFIG_FILE)
    with torch.device("meta"):
        model = HSTU(config)
    state = _read_checked(folder / WEIGHTS_FILE, model)
    model.load_state_dict({key: value.to(device, dtype) for key, value in state.items()}, assign=True)
    model.eval().requires_grad_(False)
    return LoadedModel(model, _digest(folder), folder)


def _read_checked(path: Path, model: HSTU) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise WeightsError(f"there are no weights at {path}: a model folder holds {CONFIG_FILE} and {WEIGHTS_FILE}")
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    try:
        with TensorFile(path) as file:
            report = _differences(expected, {key: entry.shape for key, entry in file.entries.items()})
            if report:
                raise WeightsError(f"{path} does not fit its {CONFIG_FILE}: {report}")
            state = {key: file.read(key) for key in expected}
    except (TensorFileError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
    spoilt = [key for key, tensor in state.items() if not tensor.isfinite().all()]
    if spoilt:
        raise WeightsError(f"{path} holds values that are not finite numbers, in {', '.join(spoilt)}")
    return state


def _differences(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> str:
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    shapes = [
        f"{key} is {list(found[key])} and should be {list(expected[key])}"
        for key in sorted(expected.keys() & found.keys())
        if expected[key] != found[key]
    ]
    parts = [("missing", missing), ("unexpected", unexpected), ("mis-shaped", shapes)]
    return "; ".join(f"{name}: {', '.join(keys)}" for name, keys in parts if keys)


def _digest(folder: Path) -> str:
    """Of configuration and weights together: either one changes the scores."""
    digest = hashlib.blake2b(digest_size=16)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with (folder / name).open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()
