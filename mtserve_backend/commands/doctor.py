"""`mtserve doctor`: will `mtserve serve` work here? Looks, changes nothing, starts nothing."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mtserve_backend import repository
from mtserve_backend.commands.memory import available_memory, pool_bytes
from mtserve_backend.commands.serve import ServeOptions
from mtserve_backend.config import Config, ConfigError
from mtserve_backend.embedded import ServerError, installation, ports, shared_memory
from mtserve_backend.models.config import HSTUConfig, ModelConfigError
from mtserve_backend.routing.config import RouterConfig

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
        folders = repository.models_of(source)
        if options.settings or options.weights:
            folders = [source / repository.MODEL]
        found = [repository.read_model(folder, options.config) for folder in folders]
    except repository.UsageError:
        raise
    except repository.RepositoryError as error:
        yield Finding("repository", "problem", str(error))
        return
    ours = [model for model in found if model.kind != "foreign"]
    if not ours:
        yield Finding("repository", "problem", f"{source} holds no model of mtserve: name another with --repository.")
        return
    yield Finding("repository", "ok", f"{source}: {', '.join(model.name for model in ours)}")
    for model in ours:
        if model.kind == "router":
            yield _router(model, [other.name for other in found])
    taken = 0
    for model in ours:
        if model.kind == "router":
            continue
        try:
            knobs = repository.with_settings(model.parameters, options.settings)
        except repository.UsageError:
            raise
        except repository.RepositoryError as error:
            yield Finding(f"{model.name} parameters", "problem", str(error))
            continue
        weights = options.weights or model.weights
        yield _weights(model.name, weights, knobs)
        if model.gpus is not None:
            yield _device(model.name, model.gpus)
        with suppress(ModelConfigError):  # reported with the weights
            taken += pool_bytes(knobs, HSTUConfig.read(weights / "config.json"), on_gpu=model.gpus is not None)
    if taken:
        yield _memory(taken, available_memory())


def _router(model: repository.ModelSummary, others: list[str]) -> Finding:
    check = f"{model.name} parameters"
    try:
        config = RouterConfig.from_parameters(model.parameters)
        config.check_not_among(model.name)
    except ConfigError as error:
        return Finding(check, "problem", str(error))
    absent = [name for name in config.names if name not in others]
    if absent:
        text = f"models names {', '.join(absent)}, which this repository does not hold: there are {', '.join(others)}."
        return Finding(check, "problem", text)
    return Finding(check, "ok", f"users are divided among {', '.join(config.names)}")


def _weights(model: str, folder: Path, knobs: Config) -> Finding:
    check = f"{model} weights"
    try:
        HSTUConfig.read(folder / "config.json")
    except ModelConfigError as error:
        return Finding(check, "problem", f"{error}. --weights names the folder of config.json and model.safetensors.")
    file = folder / "model.safetensors"
    if not os.access(file, os.R_OK):
        return Finding(check, "problem", f"{file} is missing or not readable: name the weights' folder with --weights.")
    if all(installation.installed(package) for package in _MODEL_PACKAGES):  # what is missing is reported above
        from mtserve_backend.models.weights import WeightsError, load
        from mtserve_backend.startup import check_fit

        try:
            check_fit(knobs, load(folder).model)
        except (WeightsError, ConfigError) as error:
            return Finding(check, "problem", str(error))
    return Finding(check, "ok", f"{file}, {file.stat().st_size / (1 << 20):.1f} MiB")


def _device(model: str, gpus: tuple[int, ...]) -> Finding:
    """Asked of torch, which the model will ask too."""
    check = f"{model} device"
    if installation.installed("torch") is None:
        return Finding(check, "warning", "without torch it is not known whether there is a GPU.")
    import torch

    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if present == 0:
        text = (
            f"torch {torch.__version__} sees no GPU here: use --config cpu, or a torch built for CUDA and its driver."
        )
        return Finding(check, "problem", text)
    absent = [gpu for gpu in gpus if gpu >= present]
    if absent:
        return Finding(check, "problem", f"there is no GPU {absent[0]}: torch sees {present}, counted from 0.")
    return Finding(check, "ok", f"{', '.join(torch.cuda.get_device_name(gpu) for gpu in gpus or range(present))}")


def _memory(needed: int, free: int) -> Finding:
    text = f"the pools take {needed / _GIB:.1f} GiB of {free / _GIB:.1f} GiB available"
    if needed > free:
        return Finding("memory", "problem", f"{text}: lower host_cache or device_cache with --set, as host_cache=1GiB.")
    if needed > 0.8 * free:
        return Finding("memory", "warning", f"{text}, which leaves little for the model and its activations.")
    return Finding("memory", "ok", text)
