"""The router's process is small: it takes requests and hands them on."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from tests.serving import stub

with stub.installed():
    from mtserve_backend.serving.triton_router import TritonPythonModel

    arguments = {"model_name": "hstu_router", "model_config": '{"parameters":{"models":{"string_value":"a,b"}}}'}
    TritonPythonModel().initialize(arguments)
    print(*(name for name in ("torch", "pydantic", "safetensors") if name in sys.modules))
"""


def test_it_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
