"""`mtserve package`: a model folder that needs nothing of ours installed in the server it is copied to."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mtserve_backend
from mtserve_backend import repository
from mtserve_backend.config import Config, ConfigError
from mtserve_backend.embedded import installation
from mtserve_backend.models.config import ModelConfigError
from mtserve_backend.repository import RepositoryError, UsageError

# What of this package starts servers and writes repositories; no model imports it.
NOT_SERVED = ("cli.py", "commands", "embedded", "model_repository", "repository.py")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class PackageOptions:
    """The command line of `mtserve package`, parsed. Without `gpus` the model computes on the CPU.

    `out` is a model repository, made if need be. Numbers that are None are those of the shipped configuration.
    """

    weights: Path
    out: Path
    name: str = repository.MODEL
    gpus: tuple[int, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    max_batch_size: int | None = None
    queue_delay_us: int | None = None
    max_waiting_users: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError saying all that is wrong."""
        problems = list(self._problems())
        if problems:
            raise UsageError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not _NAME.fullmatch(self.name):
            yield f"--name {self.name!r} is no model's name: letters, digits, '_', '-' and '.', as in hstu_v2"
        if len(set(self.gpus)) != len(self.gpus) or any(gpu < 0 for gpu in self.gpus):
            yield f"--gpus {','.join(map(str, self.gpus))} is no list of different GPUs, as in 0 or 0,1"
        for option, value, least, most in (
            ("--max-batch-size", self.max_batch_size, 1, 1024),
            ("--queue-delay-us", self.queue_delay_us, 1, 1_000_000),
            ("--max-waiting-users", self.max_waiting_users, 1, 1_000_000),
        ):
            if value is not None and not least <= value <= most:
                yield f"{option} is {value}; it must be {least} to {most}"

    @property
    def router(self) -> str | None:
        """The name of the model in front of several, which sends each user to one of them; None for one."""
        return f"{self.name}_router" if len(self.models) > 1 else None

    @property
    def models(self) -> dict[str, tuple[int, ...]]:
        """Names of the models to write, and the GPU of each: a model has one, and the states of its own users."""
        if len(self.gpus) < 2:
            return {self.name: self.gpus}
        return {f"{self.name}_{gpu}": (gpu,) for gpu in self.gpus}


def package(options: PackageOptions) -> list[Path]:
    """Write the models and return their folders. Each is complete before it takes its place, or an older one's.

    Raises RepositoryError for weights that do not load and folders that are not ours or cannot be written, UsageError
    for knobs that make no sense.
    """
    _check(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        folders = [_package_model(options, name, gpus) for name, gpus in options.models.items()]
        return folders if options.router is None else [*folders, _package_router(options, options.router)]
    except OSError as error:
        raise RepositoryError(f"{options.out} cannot be written: {error.strerror or error}.") from error


def _check(options: PackageOptions) -> None:
    """What would fail the load in the server fails here."""
    # Imported here: torch takes a second, which `mtserve --help` need not wait for.
    from mtserve_backend.models.weights import WeightsError, load
    from mtserve_backend.startup import check_fit

    for name in filter(None, [*options.models, options.router]):
        target = options.out / name
        if target.exists() and not (target / "1" / mtserve_backend.__name__).is_dir():
            raise RepositoryError(f"{target} exists and was not written by `mtserve package`: name another --out.")
    variant = repository.shipped_model("gpu" if options.gpus else "cpu")
    knobs = repository.with_settings(repository.strings(variant), options.settings)
    try:
        check_fit(knobs, load(options.weights).model)
    except (ModelConfigError, WeightsError, ConfigError) as error:
        raise RepositoryError(str(error)) from error


def _package_model(options: PackageOptions, name: str, gpus: tuple[int, ...]) -> Path:
    from mtserve_backend.models.weights import CONFIG_FILE, WEIGHTS_FILE

    with _in_place_of(options.out / name) as folder:
        _write_code(folder, repository.MODEL, _configuration(options, name, gpus))
        (folder / "1" / "weights").mkdir()
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copyfile(options.weights / file, folder / "1" / "weights" / file)
    return options.out / name


def _package_router(options: PackageOptions, name: str) -> Path:
    with _in_place_of(options.out / name) as folder:
        _write_code(folder, repository.ROUTER, repository.router_configuration(name, list(options.models)))
    return options.out / name


@contextmanager
def _in_place_of(target: Path) -> Iterator[Path]:
    """A folder to fill, which then takes the place of `target`."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        yield folder
        if target.exists():
            target.rename(Path(scratch) / "old")
        folder.rename(target)


def _write_code(folder: Path, shipped: str, configuration: str) -> None:
    """config.pbtxt, model.py of a shipped model, and the package."""
    (folder / "1").mkdir()
    (folder / "config.pbtxt").write_text(configuration, encoding="utf-8")
    shutil.copyfile(repository.shipped() / shipped / "1" / "model.py", folder / "1" / "model.py")
    copy_served(folder / "1" / mtserve_backend.__name__)


def copy_served(target: Path) -> None:
    """The part of this package that runs inside a server."""
    source = Path(mtserve_backend.__file__).resolve().parent

    def left_out(folder: str, names: list[str]) -> set[str]:
        here = NOT_SERVED if Path(folder) == source else ()
        return {name for name in names if name == "__pycache__" or name in here}

    shutil.copytree(source, target, ignore=left_out)


def _configuration(options: PackageOptions, name: str, gpus: tuple[int, ...]) -> str:
    """The shipped configuration with the options' changes: Triton's part, then every knob with its meaning."""
    message = repository.shipped_model("gpu" if gpus else "cpu")
    message.name = name
    knobs = {**repository.strings(message), **options.settings, "model_dir": ""}
    message.ClearField("parameters")
    if gpus:
        message.instance_group[0].gpus[:] = gpus
    if options.max_batch_size is not None:
        message.max_batch_size = options.max_batch_size
    oldest = message.sequence_batching.oldest
    if options.queue_delay_us is not None:
        oldest.max_queue_delay_microseconds = options.queue_delay_us
    if options.max_waiting_users is not None:
        oldest.max_candidate_sequences = options.max_waiting_users
    version = installation.installed("mtserve") or "of a checkout"
    heading = f"# Written by mtserve {version}, `mtserve package`. docs/operations.md tells more.\n\n"
    return heading + repository.text(message) + "".join(_knob(key, value) for key, value in knobs.items())


def _knob(key: str, value: Any) -> str:
    quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"\n# {Config.model_fields[key].description}\n"
        f'parameters {{ key: "{key}" value: {{ string_value: "{quoted}" }} }}\n'
    )
