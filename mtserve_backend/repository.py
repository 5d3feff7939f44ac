"""Model repositories composed from the shipped one: the same model under other names, weights and knobs.

`mtserve serve --set KEY=VALUE --weights DIR`, the demo and the tests use it; a fleet would rather edit a
copy of `model_repository/` and keep it under version control.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtserve_backend.config import Config, ConfigError
from mtserve_backend.routing.config import RouterConfig

MODEL = "hstu"
ROUTER = "hstu_router"


class RepositoryError(ValueError):
    """The repository cannot be composed as asked. The text says why, and what would be right."""


class UsageError(RepositoryError):
    """It is the command line that asks for what cannot be."""


def shipped() -> Path:
    """The model repository that came with this package: packaged with it, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    candidates = [package / "model_repository", package.parent / "model_repository"]
    for candidate in candidates:
        if (candidate / MODEL / "config.pbtxt").is_file():
            return candidate
    raise RepositoryError(
        f"The shipped model repository is neither {candidates[0]} nor {candidates[1]}: reinstall mtserve, "
        "or name a repository with --repository."
    )


def write_model(
    out_dir: Path | str,
    name: str = MODEL,
    weights_dir: Path | str | None = None,
    parameters: Mapping[str, str] | None = None,
    config: str = "cpu",
    source: Path | str | None = None,
) -> Path:
    """Write `<out_dir>/<name>/{config.pbtxt, 1/model.py}` and return that folder.

    `config` names the variant to start from: "cpu" is the model's config.pbtxt, any other one
    configs/<config>.pbtxt. `weights_dir` becomes the parameter model_dir; without it the weights are those
    of the source model. `source` is the repository to start from; default: the shipped one. Existing files
    are replaced.
    """
    model = (Path(source) if source is not None else shipped()) / MODEL
    template = _template(model, config)
    message = _parse(template)
    with_settings(strings(message), parameters or {})
    for key, value in (parameters or {}).items():
        message.parameters[key].string_value = value
    # An absolute path in any case: the copy of model.py has no weights/ beside it.
    weights = Path(weights_dir).resolve() if weights_dir is not None else _weights_folder(model, message)
    message.parameters["model_dir"].string_value = str(weights)
    message.name = name

    folder = Path(out_dir) / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model / "1" / "model.py", folder / "1" / "model.py")
    heading = f"# Composed by mtserve from {template}, where every line is explained.\n"
    (folder / "config.pbtxt").write_text(heading + text(message), encoding="utf-8")
    return folder


def write_router(out_dir: Path | str, models: Sequence[str], parameters: Mapping[str, str] | None = None) -> Path:
    """Write the shipped router for these models as `<out_dir>/hstu_router` and return that folder."""
    configuration = router_configuration(ROUTER, models, parameters)
    folder = Path(out_dir) / ROUTER
    (folder / "1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(shipped() / ROUTER / "1" / "model.py", folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(configuration, encoding="utf-8")
    return folder


def router_configuration(name: str, models: Sequence[str], parameters: Mapping[str, str] | None = None) -> str:
    """A config.pbtxt of the shipped router, under a name of its own, for these models."""
    template = shipped() / ROUTER / "config.pbtxt"
    message = _parse(template)
    message.name = name
    for key, value in {**(parameters or {}), "models": ",".join(models)}.items():
        message.parameters[key].string_value = value
    try:
        RouterConfig.from_parameters(strings(message)).check_not_among(name)
    except ConfigError as error:
        raise RepositoryError(f"The router's parameters are wrong: {error}") from error
    heading = "# Composed by mtserve from the shipped hstu_router/config.pbtxt, where every line is explained.\n"
    return heading + text(message)


def parse_settings(settings: list[str]) -> dict[str, str]:
    """`KEY=VALUE` words as a dictionary. Raises UsageError."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"'{setting}' is not KEY=VALUE, as in cache_mode=device.")
        if not value:
            raise UsageError(f"'{setting}' has no value: leave it out to keep the repository's.")
        if key in found:
            raise UsageError(f"{key} is set twice: {found[key]} and {value}.")
        found[key] = value
    return found


@dataclass(frozen=True)
class ModelSummary:
    """What a model's folder says about it, as far as `mtserve doctor` cares.

    `gpus` is None for one that computes on the CPU, and empty where all the server's GPUs are meant.
    """

    name: str
    kind: Literal["model", "router", "foreign"]
    gpus: tuple[int, ...] | None
    parameters: dict[str, str]
    weights: Path


def read_model(folder: Path, config: str = "cpu") -> ModelSummary:
    """Read a model of a repository. Raises RepositoryError."""
    kind = _kind(folder)
    # The router is the same on every device, and Triton too takes the default where there is no such configuration.
    message = _parse(_template(folder, "cpu" if kind == "router" else config))
    groups = [group for group in message.instance_group if group.Kind.Name(group.kind) == "KIND_GPU"]
    return ModelSummary(
        name=folder.name,
        kind=kind,
        gpus=tuple(gpu for group in groups for gpu in group.gpus) if groups else None,
        parameters=strings(message),
        weights=_weights_folder(folder, message),
    )


def _kind(folder: Path) -> Literal["model", "router", "foreign"]:
    """By what its model.py imports: a repository may hold others' models, with knobs and weights of their own."""
    path = folder / "1" / "model.py"
    source = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if "mtserve_backend" not in source:
        return "foreign"
    return "router" if "triton_router" in source else "model"


def models_of(source: Path) -> list[Path]:
    """Folders of the models of a repository. Raises RepositoryError where there are none."""
    if not source.is_dir():
        raise RepositoryError(f"The model repository {source} does not exist.")
    folders = sorted(config.parent for config in source.glob("*/config.pbtxt"))
    if not folders:
        hint = "name a folder of such folders, as model_repository/"
        if (source / "config.json").is_file():
            hint = "it looks like a model's weights, which are named with --weights"
        elif (source / "config.pbtxt").is_file():
            hint = f"it is a model itself: name the folder that it lies in ({source.resolve().parent})"
        raise RepositoryError(f"{source} is no model repository, as it holds no NAME/config.pbtxt: {hint}.")
    return folders


def shipped_model(config: str) -> Any:
    """The shipped model's configuration, "cpu" or another variant, as Triton's own ModelConfig message."""
    return _parse(_template(shipped() / MODEL, config))


def read_knobs(parameters: Mapping[str, str]) -> Config:
    """The parameters as the model itself will read them. Raises RepositoryError naming every wrong one."""
    try:
        return Config.from_parameters(parameters)
    except ConfigError as error:
        raise RepositoryError(f"The model's parameters are wrong: {error}") from error


def with_settings(parameters: Mapping[str, str], settings: Mapping[str, str]) -> Config:
    """The knobs with those of the command line. Raises UsageError where these are wrong, RepositoryError for others."""
    if "model_dir" in settings:
        raise UsageError("model_dir is no knob of the command line: name the weights' folder (--weights, --model-dir).")
    try:
        return read_knobs({**parameters, **settings})
    except RepositoryError as error:
        if settings:
            read_knobs(parameters)
            raise UsageError(str(error)) from error
        raise


def _weights_folder(model: Path, message: Any) -> Path:
    """Where a model looks for its weights: model_dir, which starts beside model.py; weights/ when empty."""
    return (model / "1" / (strings(message).get("model_dir") or "weights")).resolve()


def strings(message: Any) -> dict[str, str]:
    """A configuration's parameters."""
    return {key: parameter.string_value for key, parameter in message.parameters.items()}


def _template(model: Path, config: str) -> Path:
    path = model / "config.pbtxt" if config == "cpu" else model / "configs" / f"{config}.pbtxt"
    if not path.is_file():
        others = sorted(other.stem for other in (model / "configs").glob("*.pbtxt"))
        if not model.is_dir():
            raise RepositoryError(f"There is no model {model.name} in {model.parent}.")
        raise RepositoryError(
            f"There is no configuration '{config}' ({path}): there are {', '.join(['cpu', *others])}."
        )
    return path


def _parse(path: Path) -> Any:
    """A config.pbtxt as Triton's own ModelConfig message. Any: protobuf makes its classes at run time."""
    model_config, text_format = _protobuf()
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config.ModelConfig())
    except text_format.ParseError as error:
        raise RepositoryError(f"{path} is not a valid model configuration: {error}") from error


def text(message: Any) -> str:
    """A configuration as it stands in a config.pbtxt."""
    _, text_format = _protobuf()
    return str(text_format.MessageToString(message))


def _protobuf() -> tuple[Any, Any]:
    # Imported here: the server's own environment, which imports this package, need not have tritonclient.
    try:
        from google.protobuf import text_format  # type: ignore[import-untyped]
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise RepositoryError(
            f"Reading a model configuration needs tritonclient and protobuf ({error.name} is missing): "
            "`pip install 'mtserve[server]'`, or edit a copy of model_repository/ by hand."
        ) from error
    return model_config_pb2, text_format
