"""A model as small as can be, for tests of the server rather than of ours: it doubles its input and tells
where it runs.
"""

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

CODE = """
import sys, time
import numpy
import mtserve_backend
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info(f"prefix={sys.prefix} numpy={numpy.__file__} ours={mtserve_backend.__file__}")
        # HERE

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor * 2)]) for tensor in tensors]
"""


def write_echo(repository: Path, in_initialize: str = "", model_config: str = CONFIG) -> Path:
    """Write the model into a repository, with more code in its initialize; returns the repository."""
    folder = repository / "echo"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(model_config)
    (folder / "1" / "model.py").write_text(CODE.replace("# HERE", in_initialize))
    return repository
