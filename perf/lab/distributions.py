"""Distributions as plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perf.lab.result import Plot, Series


def latency_steps(key: str, title: str, seconds: Mapping[str, Iterable[float]]) -> Plot:
    """Distributions as one plot."""
    series = [steps_of(name, [1e3 * value for value in values]) for name, values in seconds.items()]
    return Plot(
        key=key,
        title=title,
        kind="steps",
        x_label="latency (ms)",
        y_label="share of batches",
        series=series,
        log_x=True,
    )


def steps_of(label: str, values: Iterable[float]) -> Series:
    """A cumulative distribution: at each value the share of those that are no larger; at most 200 points."""
    ordered = sorted(values)
    count = len(ordered)
    chosen = sorted({round(number * (count - 1) / 199) for number in range(200)}) if count else []
    return Series(label=label, x=[ordered[index] for index in chosen], y=[(index + 1) / count for index in chosen])
