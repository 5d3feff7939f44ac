"""Latency against history length as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from perf.judged import Judged
from perf.stats import percentile

# (mode, where the history was found) -> label, line style. What is not listed is not drawn.
LINES = {
    ("recompute", "nowhere"): ("recompute", "o-C3"),
    ("device", "nowhere"): ("device, after an eviction", "s:C1"),
    ("device", "on the device"): ("device, still there", "s-C1"),
    ("hierarchical", "in host memory"): ("hierarchical, back from host memory", "D-C0"),
    ("hierarchical", "on the device"): ("hierarchical, still on the device", "D:C0"),
}


def medians(records: Sequence[Judged]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Per line of the plot: (history's length before the visit, rounded to 100; median seconds), shortest first."""
    groups: dict[tuple[str, str], dict[int, list[float]]] = {}
    for record in records:
        if (record.mode, record.found) in LINES:
            length = max(1, round((record.length - record.new) / 100)) * 100
            groups.setdefault((record.mode, record.found), {}).setdefault(length, []).append(record.seconds)
    return {
        line: [(length, percentile(seconds, 50)) for length, seconds in sorted(points.items())]
        for line, points in groups.items()
    }


def latency_plot(records: Sequence[Judged], subtitle: str, path: Path) -> None:
    """Both axes logarithmic: a factor is the same distance everywhere."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    points = medians(records)
    for line, (label, style) in LINES.items():
        if line in points:
            lengths, seconds = zip(*points[line], strict=True)
            axes.plot(lengths, [1e3 * value for value in seconds], style, label=label, markersize=5)
    axes.set_xscale("log")
    axes.set_xticks(sorted({length for line in points.values() for length, _ in line}))
    axes.set_xticks([], minor=True)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("history length (events)")
    axes.set_ylabel("latency of a returning user's request (ms)")
    axes.set_title(f"Latency against history length\n{subtitle}", fontsize=10)
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
