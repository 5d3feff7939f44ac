"""Reads a safetensors file: a length, a JSON header, and the tensors' bytes. Nothing in it is ever executed.

Own code, because a model runs in a server whose Python has torch, numpy and nvtx only. Files are written, and this
reader is tested, with the safetensors library. Source: the format's description in that library's README.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

import torch

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
# As much as the library accepts.
MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8


class TensorFileError(ValueError):
    """The file is not what the format says; the message says where."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: `start` and `stop` are bytes from the file's beginning."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """An open file. `entries` are all its tensors; `read` copies one into memory of its own."""

    def __init__(self, path: Path) -> None:
        """Raises `TensorFileError`, or `OSError` where the file cannot be opened."""
        self._file = path.open("rb")
        try:
            size = path.stat().st_size
            if size < _LENGTH_BYTES:
                raise TensorFileError(f"it has {size} bytes, less than a header's length takes")
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self.entries = self._entries(size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._bytes.close()
        self._file.close()

    def read(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=entry.dtype)
        copied = bytearray(self._bytes[entry.start : entry.stop])
        return torch.frombuffer(copied, dtype=entry.dtype).reshape(entry.shape)

    def _entries(self, size: int) -> dict[str, TensorEntry]:
        length = int.from_bytes(self._bytes[:_LENGTH_BYTES], "little")
        begin = _LENGTH_BYTES + length
        if length > MAX_HEADER_BYTES or begin > size:
            raise TensorFileError(f"its header is said to have {length} bytes, of {size} in all")
        try:
            header = json.loads(self._bytes[_LENGTH_BYTES:begin])
        except (ValueError, RecursionError) as error:
            raise TensorFileError(f"its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise TensorFileError("its header is not a JSON object")
        header.pop("__metadata__", None)
        entries = {name: _entry(name, found, begin) for name, found in header.items()}
        at = begin
        for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].stop)):
            if entry.start != at:
                raise TensorFileError(f"{name} begins at byte {entry.start}, and what is before it ends at {at}")
            at = entry.stop
        if at != size:
            raise TensorFileError(f"its tensors end at byte {at}, and it has {size}")
        return entries


def _entry(name: str, found: Any, begin: int) -> TensorEntry:
    if not isinstance(found, dict) or str(found.get("dtype")) not in DTYPES:
        raise TensorFileError(f"{name} is not of a type that is known ({', '.join(DTYPES)})")
    dtype, shape, offsets = DTYPES[found["dtype"]], found.get("shape"), found.get("data_offsets")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise TensorFileError(f"{name} has no shape, or no place in the file")
    start, stop = offsets
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise TensorFileError(f"{name} has {stop - start} bytes; {list(shape)} of {found['dtype']} take another number")
    return TensorEntry(dtype, tuple(shape), begin + start, begin + stop)


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
