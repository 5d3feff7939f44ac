"""`python -m perf.capacity`: latency and hit ratios against the size of the device cache (Table 6 and Figure 5).

Hierarchical models that differ in `device_cache` alone, side by side on the KuaiRand-like trace, at the largest batch.
The paper's sizes are to its users' tokens as 0.056 to 0.168; here the shares go on to where everything fits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.in_turn import trace_in_turn
from perf.lab.population import trace_lengths
from perf.lab.presets import Preset
from perf.lab.result import Table, figure

SHARES = (0.25, 0.5, 0.75, 1.25)


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    tokens = sum(trace_lengths(preset, preset.users, seed))
    models = {
        f"device_{round(100 * share)}": {"cache_mode": "hierarchical", "device_cache": f"{int(share * tokens)} tokens"}
        for share in SHARES
    }
    batch = max(preset.batches)
    with trace_in_turn(preset, models, seed) as trace:
        taken = trace.put(batch, max(3, 2 * preset.visits // batch))
    rows = []
    for share, own in zip(SHARES, taken.values(), strict=True):
        waited = 1e3 * own.waited_s / own.batches
        hits = [f"{own.device_hits:.2f}%", f"{own.total_hits:.2f}%"]
        rows.append([f"{share:.0%}", f"{int(share * tokens):,}", f"{own.mean_ms:,.1f}", f"{waited:,.1f}", *hits])
        for series, value, unit in (
            ("latency", own.mean_ms, "ms"), ("wait", waited, "ms"), ("device hits", own.device_hits, "%"),
            ("total hits", own.total_hits, "%"),
        ):  # fmt: skip
            plot = "device memory" if unit == "ms" else "device memory, hits"
            findings.figures.append(
                figure(
                    f"device {share:.0%}, {series}", [value], unit, "lower" if unit == "ms" else "higher", plot=plot,
                    series=series, x=100 * share,
                )
            )  # fmt: skip
    printed = [[f"{pages:,} pages", f"{pages * 32:,}", f"{ms:g}", "-", "-", "-"] for pages, ms in paper.TABLE_6.items()]
    findings.tables.append(
        Table(
            f"Device memory (Table 6, Figure 5), batches of {batch}",
            ["share", "tokens", "mean ms", "wait ms", "device hits", "total hits"], rows, printed,
        )
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    return run("capacity", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
