"""The kernels run on CPU tensors, in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from mtserve_backend.kernels import device


@contextmanager
def kernels_on_the_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "runs_kernels", lambda _: True)
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", _create_dot)
        yield


_real_create_dot = interpreter.InterpreterBuilder.create_dot


def _create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    """The interpreter keeps bfloat16 as its bits and multiplies those as integers; a GPU multiplies the numbers."""
    return _real_create_dot(builder, _widened(a), _widened(b), *rest)


def _widened(operand: Any) -> Any:
    if operand.dtype != interpreter.tl.bfloat16:
        return operand
    values = torch.from_numpy(operand.data).view(torch.bfloat16).float().numpy()
    return interpreter.TensorHandle(values, interpreter.tl.float32)
