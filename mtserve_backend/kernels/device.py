"""What the batch needs of a device: whether kernels run there, how many programs fill it, and its tables on it."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch

# Where tests run the kernels on the CPU: enough to cut some tiles, and few enough to leave others whole.
INTERPRETED_PROGRAMS = 8


def runs_kernels(device: torch.device) -> bool:
    """Whether tensors of this device are computed by the GPU kernels.

    Tests replace this function to run the kernels on CPU tensors, in a process with TRITON_INTERPRET=1.
    """
    return device.type == "cuda"


@cache
def programs(device: torch.device) -> int:
    """How many programs keep the device busy: one for each of its processors."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return torch.cuda.get_device_properties(device).multi_processor_count


def upload(table: npt.NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """`table` as int32 on `device`, in one copy that nobody waits for, ordered on the current stream.

    On a GPU it goes through page-locked memory of torch's own allocator, which gives it to nobody else before the copy
    is done.
    """
    if device.type != "cuda":
        return torch.from_numpy(table)
    staging = torch.empty(table.shape, dtype=torch.int32, pin_memory=True)
    staging.numpy()[...] = table
    return staging.to(device, non_blocking=True)
