"""What Triton loads for the model `hstu_router`. All of it: mtserve_backend/serving/triton_router.py."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# As in hstu/1/model.py: a package that lies beside this file comes before an installed one.
if (_HERE / "mtserve_backend").is_dir():
    sys.path.insert(0, str(_HERE))

from mtserve_backend.serving.triton_router import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
