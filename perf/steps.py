"""`python -m perf.steps`: where a batch's time goes, step by step of Algorithm 1 (the paper's Table 2).

The three paradigms side by side on the KuaiRand-like trace, as `perf.paradigms` puts it to them. The steps' times are
those that the models publish on Triton's metrics port; the rest of a batch's latency is Triton, gRPC and the client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mtserve_backend.steps import STEPS
from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.in_turn import Taken, trace_in_turn
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.paradigms import MODES


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    with trace_in_turn(preset, {mode: {"cache_mode": mode} for mode in MODES}, seed) as trace:
        for size in preset.batches:
            _report(size, trace.put(size, max(2, preset.visits // size)), findings)


def _report(size: int, taken: dict[str, Taken], findings: Findings) -> None:
    rows = [[step, *(f"{taken[mode].step_ms(step):,.2f}" for mode in MODES)] for step in STEPS]
    outside = {mode: own.mean_ms - sum(own.step_ms(step) for step in STEPS) for mode, own in taken.items()}
    rows.append(["outside the engine", *(f"{outside[mode]:,.2f}" for mode in MODES)])
    rows.append(["in all", *(f"{taken[mode].mean_ms:,.1f}" for mode in MODES)])
    printed = [[f"{step}", *("-" if ms is None else f"{ms:g}" for ms in row)] for step, row in paper.TABLE_2.items()]
    findings.tables.append(
        Table(
            f"A batch of {size}, milliseconds by step (Table 2), {taken['recompute'].batches} batches",
            ["step", *MODES], rows, printed if size == 8 else [],
            "a batch may run as several waves; steps are summed over them",
        )
    )  # fmt: skip
    for mode in MODES:
        for step in STEPS:
            findings.figures.append(
                figure(
                    f"batch {size}, {mode}, {step}", [taken[mode].step_ms(step)], "ms", plot=f"steps at batch {size}",
                    series=mode, x=STEPS.index(step) + 1,
                )
            )  # fmt: skip
        findings.figures.append(figure(f"batch {size}, {mode}, outside the engine", [outside[mode]], "ms"))


def main(argv: Sequence[str] | None = None) -> int:
    return run("steps", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
