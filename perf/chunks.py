"""`python -m perf.chunks`: what the size of a host chunk does to waiting and computing (the paper's Table 3).

Hierarchical models that differ in `chunk_tokens`, side by side on the KuaiRand-like trace, at the largest batch.
Waiting is what waves waited for loads, computing the rest of step 8. The paper's wait falls with larger chunks and its
computing grows, because it loses the tail of a history that fills no chunk; here tails are flushed, so that computing
should not grow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.in_turn import trace_in_turn
from perf.lab.presets import Preset
from perf.lab.result import Table, figure

CORE = "8 encode"


def sizes(preset: Preset) -> list[int]:
    """A half of the preset's chunk to four times it: 512 to 4,096 where it is the paper's."""
    return [preset.chunk_tokens // 2, preset.chunk_tokens, 2 * preset.chunk_tokens, 4 * preset.chunk_tokens]


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    models = {f"chunk_{size}": {"cache_mode": "hierarchical", "chunk_tokens": str(size)} for size in sizes(preset)}
    batch = max(preset.batches)
    with trace_in_turn(preset, models, seed) as trace:
        taken = trace.put(batch, max(3, 2 * preset.visits // batch))
    rows = []
    for size, own in zip(sizes(preset), taken.values(), strict=True):
        waited = 1e3 * own.waited_s / own.batches
        computed = own.step_ms(CORE) - waited
        rows.append(
            [f"{size:,}", f"{waited:,.1f}", f"{computed:,.1f}", f"{own.mean_ms:,.1f}", f"{own.total_hits:.2f}%"]
        )
        for name, value in (("wait", waited), ("compute", computed), ("end to end", own.mean_ms)):
            findings.figures.append(
                figure(f"chunk {size}, {name}", [value], "ms", plot="chunk size", series=name, x=size)
            )
    printed = [[f"{size:,}", *(f"{ms:g}" for ms in row), "-"] for size, row in paper.TABLE_3.items()]
    findings.tables.append(
        Table(
            f"Chunk sizes (Table 3), batches of {batch}, ms",
            ["chunk tokens", "wait", "compute", "end to end", "total hits"], rows, printed,
        )
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    return run("chunks", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
