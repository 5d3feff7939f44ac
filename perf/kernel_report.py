"""`python -m perf.kernel_report`: what the compiler makes of the GPU kernels: registers, spills, shared memory.

Every kernel in its default configuration is compiled, without a GPU, for the architectures of the A100 (80), the H100
and H200 (90) and the B200 (100), and the compiled program is asked what it needs. docs/kernels.md holds the table.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from tqdm import tqdm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mtserve_backend.kernels import append_kernel, attention_kernel, copy_kernel
from mtserve_backend.kernels.tuning import APPEND_WARPS, COPY_WARPS, SUM_WARPS, tuning_for
from perf.environment import environment
from perf.paper_model import CONFIG

ARCHITECTURES = (80, 90, 100)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEAD_DIMS = (32, 64, 96, 128, 192, 256)
PAGE_TOKENS = 32
# As the kernels are called: memory at multiples of 16 bytes, and strides that are multiples of 16.
ALIGNED = (("tt.divisibility", 16),)


@dataclass(frozen=True)
class Case:
    """One kernel, compiled for one data type, head dimension and page size."""

    kernel: str
    dtype: str
    head_dim: int
    page_tokens: int
    function: Any
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int
    stages: int


@dataclass(frozen=True)
class Needs:
    """What one thread or program of a compiled kernel needs."""

    kernel: str
    dtype: str
    head_dim: int
    page_tokens: int
    architecture: int
    warps: int
    stages: int
    registers: int
    spilled_bytes: int
    shared_bytes: int


def cases(dtype: str, head_dim: int, page_tokens: int = PAGE_TOKENS, heads: int = CONFIG.heads) -> Iterator[Case]:
    """The five kernels as a server with such a model runs them."""
    torch_dtype = DTYPES[dtype]
    tuning = tuning_for(torch_dtype, head_dim)
    shape = torch.Size((2, heads, page_tokens, head_dim))
    value, number, table = f"*{dtype}", "i32", "*i32"
    matrices = dict.fromkeys(("q", "k", "v", "out", "storage"), value)
    strides = dict.fromkeys(("q_stride", "k_stride", "v_stride", "target_pages", "source_pages"), number)
    tables = dict.fromkeys(("page_tables", "pieces", "runs", "sums", "target_numbers", "source_numbers"), table)
    types = {**matrices, **strides, **tables, "partial": "*fp32", "target": table, "source": table}

    def case(kernel: str, function: Any, constants: dict[str, Any], warps: int, stages: int = 3) -> Case:
        used = {name: types[name] for name in function.arg_names if name in types}
        return Case(kernel, dtype, head_dim, page_tokens, function, used, constants, warps, stages)

    attend = attention_kernel.attend_constants(shape, torch_dtype, tuning)
    yield case("attend", attention_kernel.attend_kernel, attend, tuning.warps, tuning.stages)
    yield case("sum", attention_kernel.sum_kernel, attention_kernel.sum_constants(shape, tuning), SUM_WARPS)
    yield case("append", append_kernel.append_kernel, append_kernel.append_constants(shape, tuning), APPEND_WARPS)
    for kernel, to_pages in (("scatter", True), ("gather", False)):
        constants = copy_kernel.copy_constants(shape, torch_dtype.itemsize, to_pages)
        yield case(kernel, copy_kernel.copy_pages_kernel, constants, COPY_WARPS)


def compile_case(case: Case, architecture: int) -> Needs:
    """Compile, and read what the program needs. Raises what the compiler raises."""
    names: list[str] = case.function.arg_names
    unspecialised = {"target_pages", "source_pages"}
    source = ASTSource(
        case.function,
        {name: case.types.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in case.constants.items()},
        {(names.index(name),): [list(pair) for pair in ALIGNED] for name in case.types if name not in unspecialised},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": case.warps, "num_stages": case.stages},
    )
    registers, spilled = _resources(compiled.asm["cubin"])
    return Needs(
        case.kernel, case.dtype, case.head_dim, case.page_tokens, architecture, case.warps, case.stages,
        registers, spilled, compiled.metadata.shared,
    )  # fmt: skip


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and the bytes it spills: the kernels have no other use for a stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump no longer says what a kernel needs in the way known here: {done.stdout!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def markdown(rows: Sequence[Needs]) -> str:
    """A column an architecture; types, and then head dimensions, that come to the same numbers share a line."""
    architectures = sorted({row.architecture for row in rows})
    cells: dict[tuple[str, int, str, int, int], list[str]] = {}
    for row in sorted(rows, key=lambda row: row.architecture):
        cells.setdefault((row.kernel, row.head_dim, row.dtype, row.warps, row.stages), []).append(_cell(row))
    by_dim: dict[tuple[Any, ...], list[str]] = {}
    for (kernel, head_dim, dtype, *settings), found in cells.items():
        by_dim.setdefault((kernel, head_dim, *settings, *found), []).append(dtype)
    lines: dict[tuple[Any, ...], list[int]] = {}
    for (kernel, head_dim, *rest), dtypes in by_dim.items():
        lines.setdefault((kernel, ", ".join(dtypes), *rest), []).append(head_dim)
    titles = ["kernel", "type", "head dim", "warps", "stages", *(f"sm_{number}" for number in architectures)]
    table = [titles, ["---"] * len(titles)]
    for (kernel, dtypes, *rest), head_dims in lines.items():
        table.append([kernel, dtypes, ", ".join(map(str, head_dims)), *map(str, rest)])
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def put_table(file: Path, table: str) -> None:
    """Write `table` to `file` in place of the one with its first columns, or as all of it if there is no such file."""
    text = file.read_text(encoding="utf-8") if file.exists() else table
    file.write_text(re.sub(r"\| kernel \| type \|.*\n(\|.*\n)*", lambda _: table, text, count=1), encoding="utf-8")


def _cell(needs: Needs) -> str:
    return f"{needs.registers} / {needs.spilled_bytes} / {needs.shared_bytes / 1024:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf.kernel_report", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table here, in place of the one there")
    arguments = parser.parse_args(argv)
    wanted = [
        (case, architecture)
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
        for case in cases(dtype, head_dim)
        for architecture in ARCHITECTURES
    ]
    rows = [compile_case(*one) for one in tqdm(wanted, desc="compiling", file=sys.stderr)]
    order = [case.kernel for case in cases("fp32", 32)]
    rows.sort(key=lambda row: (order.index(row.kernel), list(DTYPES).index(row.dtype), row.head_dim))
    print(f"triton {triton.__version__}; {CONFIG.heads} heads, pages of {PAGE_TOKENS} tokens")
    print("registers of a thread / bytes it spills / KiB of shared memory of a program")
    print(markdown(rows), end="")
    if arguments.markdown:
        put_table(arguments.markdown, markdown(rows))
    if arguments.json:
        report = {"needs": [asdict(row) for row in rows], "triton": triton.__version__, "environment": environment()}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    spilling = [row for row in rows if row.spilled_bytes]
    if spilling:
        print(f"{len(spilling)} of {len(rows)} spill", file=sys.stderr)
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
