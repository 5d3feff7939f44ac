"""The GPU kernels through the compiler, without a GPU: they compile for each architecture, and nothing spills."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs the package triton (extra 'dev', Linux)")

from perf.kernel_report import ARCHITECTURES, DTYPES, HEAD_DIMS, cases, compile_case, markdown, put_table

# What a processor has for one program: A100, H100 and H200, B200.
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
KERNELS = {"attend", "sum", "append", "scatter", "gather"}


def check(dtype: str, head_dim: int, page_tokens: int, architecture: int) -> None:
    needs = [compile_case(case, architecture) for case in cases(dtype, head_dim, page_tokens)]
    assert {one.kernel for one in needs} == KERNELS
    assert [one for one in needs if one.spilled_bytes] == []
    assert all(one.shared_bytes <= SHARED_BYTES[architecture] for one in needs)
    assert all(0 < one.registers <= 255 for one in needs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_papers_model(dtype: str, architecture: int) -> None:
    check(dtype, 128, 32, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("page_tokens", [16, 32, 48, 256])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_model(dtype: str, head_dim: int, page_tokens: int, architecture: int) -> None:
    check(dtype, head_dim, page_tokens, architecture)


def test_a_spill_is_seen() -> None:
    """Four times the rows in as many registers: the report must not call that nothing."""
    case = next(iter(cases("fp32", 128)))
    case.constants["TILE_ROWS"] = 128
    needs = compile_case(case, 90)
    assert needs.spilled_bytes > 0
    assert f"{needs.registers} / {needs.spilled_bytes} / " in markdown([needs])


def test_the_table_takes_the_place_of_the_one_in_the_document(tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    put_table(page, "| kernel | type | old |\n| --- | --- | --- |\n| attend | fp32 | 1 |\n")
    page.write_text(f"| kernel | what it does |\n|---|---|\n| attend | adds |\n\n{page.read_text()}\nAfter.\n")
    put_table(page, "| kernel | type | new |\n| --- | --- | --- |\n")
    assert page.read_text() == (
        "| kernel | what it does |\n|---|---|\n| attend | adds |\n\n"
        "| kernel | type | new |\n| --- | --- | --- |\n\nAfter.\n"
    )
