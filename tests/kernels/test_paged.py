"""The face of append and attend on a CPU: the torch reference, segment by segment, and no `triton`."""

from __future__ import annotations

import subprocess
import sys

import torch
from hypothesis import given, settings

from mtserve_backend.kernels import attention, paged
from mtserve_backend.kernels.paged import PagedBatch
from tests.kernels.ragged import Ragged, Scene, batches, same_bits


@settings(max_examples=30)
@given(batches(longest=20, widest=5, page_tokens=(1, 3, 8)))
def test_a_batch_is_its_segments(ragged: Ragged) -> None:
    one, other = Scene(ragged, torch.float64), Scene(ragged, torch.float64)
    batch = PagedBatch.of(one.segments, one.pages, one.storage)
    assert batch.gpu is None
    paged.append(one.storage, batch, one.k, one.v)
    paged.attend(one.storage, batch, one.q, one.k, one.v, one.out)
    for segment, pages in zip(other.segments, other.pages, strict=True):
        attention.append(other.storage, pages, other.k, other.v, segment)
        attention.attend(other.storage, pages, other.q, other.k, other.v, segment, other.out)
    assert same_bits(one.guarded, other.guarded)
    assert same_bits(one.guarded_out, other.guarded_out)


def test_a_cpu_server_needs_no_triton() -> None:
    """Everything the server imports, in a process in which `triton` cannot be imported, and a warm-up."""
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, mtserve_backend.startup, mtserve_backend.cli\n"
        "from mtserve_backend.kernels.layout import KVShape\n"
        "from mtserve_backend.kernels.warmup import warm_up\n"
        "warm_up(KVShape(1, 1, 16), 32, torch.float32, torch.device('cpu'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
