"""What Triton loads for the model `hstu`: the class it expects, under the name it expects.

All of it lives in the package `mtserve_backend`: lying beside this file (`mtserve package` puts it there), or installed
in the server's Python. Start reading at mtserve_backend/serving/triton_model.py. The knobs: ../config.pbtxt.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# Triton appends this folder to the path. What lies here was packaged with these weights and this configuration, so it
# comes before what is installed.
if (_HERE / "mtserve_backend").is_dir():
    sys.path.insert(0, str(_HERE))

from mtserve_backend.serving.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
