"""/dev/shm: where the Python backend and its stub processes exchange tensors.

The backend does not check the space: it takes a region that grows, and a full /dev/shm ends in a bus error
in the middle of a request. So the check comes first.
"""

import os
from pathlib import Path

from mtserve_backend.embedded.errors import ServerError

SHM = Path("/dev/shm")
_MIB = 1 << 20
# The region starts at a few MiB and grows with the largest batch: 64 users with histories of 6,400 tokens
# need 6 MiB in flight. Docker's default /dev/shm has 64 MiB in all, which several models or a few large
# batches fill.
TOO_SMALL = 32 * _MIB
TIGHT = 256 * _MIB
_REMEDY = (
    "give the container more with `docker run --shm-size=1g` (Kubernetes: an emptyDir of medium Memory on /dev/shm)"
)


def free_bytes(folder: Path = SHM) -> int:
    """Bytes still free in /dev/shm; raises ServerError where there is none to write to."""
    if not folder.is_dir():
        raise ServerError(f"{folder} does not exist, and Triton's Python backend cannot work without it: {_REMEDY}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ServerError(f"{folder} is not writable for this user: `chmod 1777 {folder}` as root.")
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def check(needed: int = TOO_SMALL, folder: Path = SHM) -> None:
    """Refuse to start where the Python backend would die later."""
    free = free_bytes(folder)
    if free < needed:
        raise ServerError(
            f"{folder} has {free / _MIB:.0f} MiB free; the Python backend needs {needed / _MIB:.0f} MiB: "
            f"{_REMEDY}, or remove what dead servers left there (`ls -l {folder}`)."
        )
