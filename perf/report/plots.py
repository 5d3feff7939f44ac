"""A result's plots as inline SVG: text stays text, nothing is fetched."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from perf.lab.result import Plot, Series

# Read on a phone: narrow, large letters.
SIZE_INCHES = (6.0, 4.2)
COLOURS = ("#c0392b", "#d68910", "#1f618d", "#1e8449", "#7d3c98", "#5d6d7e", "#117a65", "#a04000")
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "mtserve", "font.size": 11, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif",
}  # fmt: skip


def svg(plot: Plot) -> str:
    """The `<svg>` element. The same plot gives the same bytes."""
    text = _rendered(plot, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def png(plot: Plot) -> bytes:
    """For documents that show pictures only."""
    return _rendered(plot, "png")


def _rendered(plot: Plot, form: str) -> bytes:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
        _DRAW[plot.kind](axes, plot)
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        if plot.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_plain)
        if len(plot.series) > 1:
            # Above the axes, where nothing is drawn.
            figure.legend(fontsize=9, frameon=False, loc="outside upper left", ncols=2 if len(plot.series) <= 4 else 3)
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(buffer, format=form, dpi=130, metadata=metadata)
        plt.close(figure)
    return buffer.getvalue()


def _lines(axes: Any, plot: Plot) -> None:
    for series, colour in zip(plot.series, _colours(plot), strict=True):
        style = "s--" if series.origin == "paper" else "o-"
        axes.plot(series.x, series.y, style, color=colour, label=_label(series), markersize=4)
        if series.low and series.high:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    if plot.log_x:
        axes.set_xscale("log")
        ticks = sorted({value for series in plot.series for value in series.x if not isinstance(value, str)})
        axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: len(ticks) // 6])
        axes.set_xticks([], minor=True)
        axes.xaxis.set_major_formatter(_plain)


def _steps(axes: Any, plot: Plot) -> None:
    for series, colour in zip(plot.series, _colours(plot), strict=True):
        axes.plot(series.x, series.y, drawstyle="steps-post", color=colour, label=_label(series))
    axes.set_ylim(0, 1.02)
    if plot.log_x:
        axes.set_xscale("log")


def _bars(axes: Any, plot: Plot) -> None:
    labels = _labels(plot)
    width = 0.8 / len(plot.series)
    for number, (series, colour) in enumerate(zip(plot.series, _colours(plot), strict=True)):
        places = [labels.index(str(label)) - 0.4 + (number + 0.5) * width for label in series.x]
        spread = None
        if series.low and series.high:
            spread = [
                [max(0.0, value - low) for value, low in zip(series.y, series.low, strict=True)],
                [max(0.0, high - value) for value, high in zip(series.y, series.high, strict=True)],
            ]
        hatch = "//" if series.origin == "paper" else None
        axes.bar(places, series.y, width, color=colour, label=_label(series), yerr=spread, hatch=hatch, capsize=2)
    axes.set_xticks(range(len(labels)), labels)


def _stacked(axes: Any, plot: Plot) -> None:
    labels = _labels(plot)
    below = [0.0] * len(labels)
    for series, colour in zip(plot.series, _colours(plot), strict=True):
        values = dict(zip(map(str, series.x), series.y, strict=True))
        heights = [values.get(label, 0.0) for label in labels]
        axes.bar(range(len(labels)), heights, 0.6, bottom=below, color=colour, label=_label(series))
        below = [bottom + height for bottom, height in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(labels)), labels)


def _labels(plot: Plot) -> list[str]:
    return list(dict.fromkeys(str(label) for series in plot.series for label in series.x))


def _label(series: Series) -> str:
    return f"{series.label} (the paper's)" if series.origin == "paper" else series.label


def _colours(plot: Plot) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(plot.series))]


def _plain(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


_DRAW: Mapping[str, Callable[[Any, Plot], None]] = {
    "line": _lines, "steps": _steps, "bars": _bars, "stacked": _stacked,
}  # fmt: skip
