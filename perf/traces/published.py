"""What MTServe publishes of its two traces (table 4), beside a trace's own statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from perf.traces.statistics import Statistics

# These grow with the number of users; lengths do not.
COUNTS = ("users", "requests")


@dataclass(frozen=True)
class Published:
    """The names are those of `Statistics`."""

    name: str
    users: int
    requests: int
    shortest: int
    longest: int
    mean_length: float

    def figures(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "name"}


KUAIRAND_1K = Published("KuaiRand-1K", users=1_000, requests=1_181_699, shortest=1, longest=20_000, mean_length=6_375)
MT = Published("MT", users=2_884, requests=1_972_438, shortest=4_000, longest=6_000, mean_length=5_189)


@dataclass(frozen=True)
class Comparison:
    """One statistic. `expected`: the published figure at the trace's scale; `difference` is relative to it."""

    name: str
    value: float
    published: float | None = None
    expected: float | None = None

    @property
    def difference(self) -> float | None:
        return None if not self.expected else self.value / self.expected - 1


def compare(statistics: Statistics, published: Published | None, scale: float = 1.0) -> list[Comparison]:
    """`scale`: the trace's share of the published trace's users."""
    figures = published.figures() if published else {}
    rows = []
    for name, value in statistics.as_dict().items():
        figure = figures.get(name)
        expected = figure * scale if figure is not None and name in COUNTS else figure
        rows.append(Comparison(name, value, figure, expected))
    return rows


def table(rows: list[Comparison], title: str = "the trace") -> Iterator[str]:
    """The comparison as lines of text; columns of published figures only where there are any."""
    known = any(row.published is not None for row in rows)
    heads = f"{'published':>14}{'at this scale':>15}{'difference':>12}" if known else ""
    yield f"{title:<28}{'own':>14}{heads}"
    for row in rows:
        line = f"  {row.name:<26}{_number(row.value):>14}"
        if row.published is not None and row.expected is not None and row.difference is not None:
            line += f"{_number(row.published):>14}{_number(row.expected):>15}{row.difference:>+12.2%}"
        elif known:
            line += f"{'-':>14}{'-':>15}{'-':>12}"
        yield line


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.4f}"
