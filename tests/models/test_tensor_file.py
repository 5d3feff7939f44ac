"""The reader of safetensors files, against the library that writes them, and against files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from mtserve_backend.models.tensor_file import DTYPES, TensorFile, TensorFileError

SHAPES = ((), (0,), (3,), (2, 0, 4), (2, 3, 4))


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, stop: int, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [start, stop]}


def test_what_the_library_writes_is_read_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {
        f"{name}{shape}": (torch.randn(shape) * 100).to(dtype) for name, dtype in DTYPES.items() for shape in SHAPES
    }
    save_file(state, tmp_path / "file", metadata={"format": "pt"})
    with TensorFile(tmp_path / "file") as file:
        assert file.entries.keys() == state.keys()
        for name, tensor in state.items():
            read = file.read(name)
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor)
            assert file.entries[name].shape == tuple(tensor.shape)


def test_what_is_read_outlives_the_file(tmp_path: Path) -> None:
    save_file({"x": torch.arange(5.0)}, tmp_path / "file")
    with TensorFile(tmp_path / "file") as file:
        tensor = file.read("x")
    (tmp_path / "file").unlink()
    tensor += 1
    assert tensor.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"", b"", "is not JSON"),
        (b"[1]", b"", "not a JSON object"),
        (b"\xff\xfe", b"", "is not JSON"),
        (b"[" * 100_000, b"", "is not JSON"),
        ({"a": 1}, b"", "a is not of a type"),
        ({"a": entry(0, 4, dtype="F4")}, b"1234", "a is not of a type"),
        ({"a": entry(0, 4, dtype=["F32"])}, b"1234", "a is not of a type"),
        ({"a": entry(0, 4, shape="1")}, b"1234", "a has no shape"),
        ({"a": entry(0, 4, shape=(-1, -1))}, b"1234", "a has no shape"),
        ({"a": entry(0, 4, shape=(True,))}, b"1234", "a has no shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"1234", "a has no shape"),
        ({"a": entry(0, 8)}, b"12345678", "a has 8 bytes"),
        ({"a": entry(4, 0)}, b"1234", "a has -4 bytes"),
        ({"a": entry(0, 4 * 2**62, shape=(2**62,))}, b"1234", "its tensors end at"),
        ({"a": entry(4, 8)}, b"12345678", "a begins at byte"),
        ({"a": entry(0, 4), "b": entry(0, 4)}, b"1234", "b begins at byte"),
        ({"a": entry(0, 4)}, b"12345", "its tensors end at"),
        ({"a": entry(0, 4)}, b"", "its tensors end at"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path: Path, header: Any, data: bytes, said: str) -> None:
    with pytest.raises(TensorFileError, match=said):
        TensorFile(write(tmp_path / "file", header, data))


@pytest.mark.parametrize(
    "content", [b"", b"1234567", (2**60).to_bytes(8, "little"), b"\xff" * 8, b"\x10" + b"\x00" * 7]
)
def test_a_header_longer_than_the_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TensorFileError):
        TensorFile(tmp_path / "file")


GOOD = save({"x": torch.arange(6.0).reshape(2, 3), "y": torch.tensor([1, 2], dtype=torch.int32)})


@given(
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
    length=st.integers(0, len(GOOD)),
)
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(GOOD)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content if length % 2 else content[:length])
    try:
        with TensorFile(path) as file:
            for name in file.entries:
                assert file.read(name).numel() >= 0
    except TensorFileError:
        pass
