"""`mtserve doctor`: will `mtserve serve` work here? Looks, changes nothing, starts nothing."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mtserve_backend import repository
from mtserve_backend.commands.memory import available_memory, pool_bytes
from mtserve_backend.commands.serve import ServeOptions
from mtserve_backend.config import Config, ConfigError
from mtserve_backend.embedded import ServerError, installation, ports, shared_memory
from mtserve_backend.models.config import HSTUConfig, ModelConfigError

Status = Literal["ok", "warning", "problem"]

_GIB = 1 << 30
# What the wheel's libraries were built against.
_GLIBC = (2, 35)
_SERVER_PACKAGES = ("nvidia-pytriton", "tritonclient")
_MODEL_PACKAGES = ("torch", "nvtx")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    status: Status
    text: str


def examine(options: ServeOptions) -> list[Finding]:
    """Every check, in the order in which a start would fail."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _glibc,
        _packages,
        _numpy,
        _tritonserver,
        _shared_memory,
        lambda: _ports(options),
        lambda: _models(options),
    ]
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    try:
        found = installation.find_libpython()
    except ServerError as error:
        yield Finding("libpython", "problem", str(error))
        return
    if found.is_relative_to(Path(sys.base_prefix).resolve()) or found.resolve().is_relative_to("/usr/lib"):
        yield Finding("libpython", "ok", str(found))
    else:
        yield Finding(
            "libpython",
            "warning",
            f"{found} is of another build than {sys.base_prefix}: the same minor version, so it should do.",
        )


def _glibc() -> Iterator[Finding]:
    name, version = platform.libc_ver()
    if name != "glibc":
        yield Finding(
            "glibc", "problem", f"This system has {name or 'an unknown libc'}; tritonserver needs glibc 2.35."
        )
    elif tuple(int(part) for part in version.split(".")[:2]) < _GLIBC:
        yield Finding(
            "glibc",
            "problem",
            f"{version}; tritonserver needs 2.35 or newer: Ubuntu 22.04, Debian 12, or a container of them.",
        )
    else:
        yield Finding("glibc", "ok", version)


def _packages() -> Iterator[Finding]:
    for name in (*_SERVER_PACKAGES, *_MODEL_PACKAGES):
        version = installation.installed(name)
        if version is not None:
            yield Finding(name, "ok", version)
        else:
            extra = "mtserve[server]" if name in _SERVER_PACKAGES else "mtserve"
            yield Finding(name, "problem", f"It is not installed: `pip install '{extra}'`.")


def _numpy() -> Iterator[Finding]:
    try:
        installation.check_numpy()
    except ServerError as error:
        yield Finding("numpy", "problem", str(error))
    else:
        yield Finding("numpy", "ok", str(installation.installed("numpy")))


def _tritonserver() -> Iterator[Finding]:
    try:
        yield Finding("tritonserver", "ok", str(installation.find().server))
    except ServerError as error:
        yield Finding("tritonserver", "problem", str(error))


def _shared_memory() -> Iterator[Finding]:
    try:
        shared_memory.check()
        free = shared_memory.free_bytes()
    except ServerError as error:
        yield Finding("shared memory", "problem", str(error))
        return
    text = f"{free / (1 << 20):.0f} MiB free in {shared_memory.SHM}"
    if free < shared_memory.TIGHT:
        yield Finding("shared memory", "warning", f"{text}: several models, or large batches, need more.")
    else:
        yield Finding("shared memory", "ok", text)


def _ports(options: ServeOptions) -> Iterator[Finding]:
    wanted = {"grpc": options.grpc_port, "http": options.http_port, "metrics": options.metrics_port}
    for service, port in wanted.items():
        try:
            chosen = ports.choose(options.address, {service: port})[service]
        except ServerError as error:
            yield Finding(f"{service} port", "problem", str(error))
        else:
            text = f"{chosen} is free on {options.address}" if port else "any free one"
            yield Finding(f"{service} port", "ok", text)


def _models(options: ServeOptions) -> Iterator[Finding]:
    try:
        source = options.repository or repository.shipped()
        folders = [source / repository.MODEL] if options.settings or options.weights else _model_folders(source)
        models = [repository.read_model(folder, options.config) for folder in folders]
    except repository.RepositoryError as error:
        yield Finding("repository", "problem", str(error))
        return
    yield Finding("repository", "ok", f"{source}: {', '.join(model.name for model in models)}")
    taken = 0
    for model in models:
        weights = options.weights or model.weights
        try:
            if "model_dir" in options.settings:
                raise repository.RepositoryError("model_dir is set by naming the weights' folder (--weights DIR).")
            knobs = repository.read_knobs(model.parameters | options.settings)
            yield _weights(model.name, weights, knobs)
            if model.on_gpu:
                yield Finding(f"{model.name} device", "problem", "this release computes on the CPU: use --config cpu.")
            taken += pool_bytes(knobs, HSTUConfig.read(weights / "config.json"), on_gpu=model.on_gpu)
        except repository.RepositoryError as error:
            yield Finding(f"{model.name} parameters", "problem", str(error))
        except ModelConfigError as error:
            yield Finding(f"{model.name} config.json", "problem", str(error))
    if taken:
        yield _memory(taken, available_memory())


def _model_folders(source: Path) -> list[Path]:
    """The models of a repository that are ours: others have knobs and weights of their own."""
    folders = sorted(config.parent for config in source.glob("*/config.pbtxt"))
    ours = [folder for folder in folders if "mtserve_backend" in _source_of(folder)]
    if not ours:
        raise repository.RepositoryError(f"{source} holds no model of mtserve: name another with --repository.")
    return ours


def _source_of(folder: Path) -> str:
    path = folder / "1" / "model.py"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _weights(model: str, folder: Path, knobs: Config) -> Finding:
    file = folder / "model.safetensors"
    if not os.access(file, os.R_OK):
        text = f"{file} is missing or not readable: name the weights' folder with --weights."
        return Finding(f"{model} weights", "problem", text)
    if all(installation.installed(package) for package in _MODEL_PACKAGES):  # what is missing is reported above
        import torch

        from mtserve_backend.models.weights import WeightsError, load
        from mtserve_backend.startup import plan_geometry

        try:
            plan_geometry(knobs, knobs.cache_mode, load(folder).model.kv_shape, torch.float32)
        except (WeightsError, ConfigError) as error:
            return Finding(f"{model} weights", "problem", str(error))
    return Finding(f"{model} weights", "ok", f"{file}, {file.stat().st_size / (1 << 20):.1f} MiB")


def _memory(needed: int, free: int) -> Finding:
    text = f"the pools take {needed / _GIB:.1f} GiB of {free / _GIB:.1f} GiB available"
    if needed > free:
        return Finding("memory", "problem", f"{text}: lower host_cache or device_cache with --set, as host_cache=1GiB.")
    if needed > 0.8 * free:
        return Finding("memory", "warning", f"{text}, which leaves little for the model and its activations.")
    return Finding("memory", "ok", text)
