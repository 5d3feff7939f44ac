"""A model that answers without doing anything: what Triton, gRPC and both ends' Python take by themselves."""

from __future__ import annotations

from pathlib import Path

NOTHING = "nothing"

_CODE = '''\
"""Written by perf/traffic/nothing.py: every answer is zero."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    @staticmethod
    def answer(request):
        candidates = pb_utils.get_input_tensor_by_name(request, "CANDIDATES").as_numpy()
        scores = np.zeros((1, candidates.shape[1], 1), dtype=np.float32)
        outputs = {"SCORES": scores, "RANKING": candidates, "CACHE_INFO": np.zeros((1, 5), dtype=np.int32)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
'''


def do_nothing(folder: Path) -> None:
    """Let the model in `folder`, which `write_model` has written, do nothing; its configuration stays."""
    (folder / "1" / "model.py").write_text(_CODE, encoding="utf-8")
