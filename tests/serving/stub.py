"""The Python backend's module as a model finds it inside a server, so that `serving/` runs in this process.

Its Python half is the real one, from the wheel that carries the server; what the stub adds from C++ only holds data.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy.typing as npt

from mtserve_backend.embedded import installation

NAME = "triton_python_backend_utils"
CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]


@dataclass
class Tensor:
    tensor_name: str
    array: npt.NDArray[Any]

    def name(self) -> str:
        return self.tensor_name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.array


class TritonError:
    """The codes are attributes, as in C++."""

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


for _code in CODES:
    setattr(TritonError, _code, _code)


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def output(self, name: str) -> npt.NDArray[Any]:
        return next(tensor.array for tensor in self.output_tensors if tensor.name() == name)


@dataclass
class Request:
    """What `execute` gets; any part of it may be wrong. `user` may be bytes that are no UTF-8."""

    user: int | str | bytes
    tensors: dict[str, npt.NDArray[Any]]
    parameter_text: str = ""
    timeout_us: int = 0
    cancelled: bool = False

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def correlation_id(self) -> int | str:
        return self.user.decode() if isinstance(self.user, bytes) else self.user

    def parameters(self) -> str:
        return self.parameter_text

    def timeout(self) -> int:
        return self.timeout_us

    def is_cancelled(self) -> bool:
        return self.cancelled


class Logger:
    """Keeps what is logged."""

    lines: list[str] = []  # noqa: RUF012 - one log for the process, as the server's is

    @classmethod
    def log_info(cls, text: str) -> None:
        cls.lines.append(text)

    log_warn = log_error = log_info


@contextmanager
def installed() -> Iterator[ModuleType]:
    """The module is importable; afterwards neither it nor what imported it is left."""
    spec = importlib.util.spec_from_file_location(NAME, installation.find().backend / f"{NAME}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for added in (Tensor, TritonError, InferenceResponse, Logger):
        setattr(module, added.__name__, added)
    module.TritonModelException = type("TritonModelException", (Exception,), {})  # type: ignore[attr-defined]
    before = {name for name in sys.modules if name.startswith("mtserve_backend.serving")}
    assert not before, "the package was imported outside a server"
    sys.modules[NAME] = module
    try:
        yield module
    finally:
        for name in [name for name in sys.modules if name.startswith("mtserve_backend.serving")]:
            del sys.modules[name]
        del sys.modules[NAME]
