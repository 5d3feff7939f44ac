"""What Triton loads for the model `hstu`: the class it expects, under the name it expects.

All of it lives in the package `mtserve_backend`, which the server's Python must be able to import:
installed, or lying beside this file. Start reading at mtserve_backend/serving/triton_model.py. The knobs:
../config.pbtxt.
"""

from mtserve_backend.serving.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
