"""Where the suite runs.

MTSERVE_GPU_SUITE_ON=cpu runs it on a CPU, which proves the suite and not the GPU's code. With TRITON_INTERPRET=1 beside
it the kernels run in their interpreter.
"""

import os

ASKED = os.environ.get("MTSERVE_GPU_SUITE_ON", "cuda")
INTERPRETED = ASKED != "cuda" and os.environ.get("TRITON_INTERPRET") == "1"
# Of each random search; an interpreter is a thousand times slower than a GPU.
EXAMPLES = 4 if INTERPRETED else 60
