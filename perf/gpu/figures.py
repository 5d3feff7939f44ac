"""What a part measures: figures with a unit, and for some what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perf.stats import percentile


@dataclass(frozen=True)
class Figure:
    """`value` is a median; `low` and `high` are the spread of the runs, `p95` of single requests.

    `floor` is the least that the ceilings measured on this machine allow, in the same unit; `share` what part of its
    ceiling the figure reaches, and `aim` what it should reach (for `below`: stay under).
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    p95: float | None = None
    floor: float | None = None
    share: float | None = None
    aim: float | None = None
    below: bool = False

    @property
    def verdict(self) -> str:
        if self.aim is None:
            return ""
        reached = self.share if self.share is not None else self.value
        met = reached <= self.aim if self.below else reached >= self.aim
        return "met" if met else "MISSED"

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None} | {"verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Figure:
        return cls(**{key: value for key, value in values.items() if key != "verdict"})


def of_times(name: str, seconds: Sequence[float], floor: float | None = None, aim: float | None = None) -> Figure:
    """Of a piece of work: milliseconds, and the floor's share of them."""
    ms = [1e3 * value for value in seconds]
    median = percentile(ms, 50)
    share = 1e3 * floor / median if floor else None
    return Figure(name, median, "ms", min(ms), max(ms), percentile(ms, 95), 1e3 * floor if floor else None, share, aim)


def of_rates(
    name: str, amount: float, seconds: Sequence[float], ceiling: float | None = None, aim: float | None = None
) -> Figure:
    """Of bytes moved: GB/s, and their share of the ceiling's, which is in bytes a second."""
    rates = [amount / value / 1e9 for value in seconds]
    median = percentile(rates, 50)
    return Figure(
        name, median, "GB/s", min(rates), max(rates), share=1e9 * median / ceiling if ceiling else None, aim=aim
    )


def table(figures: Sequence[Figure]) -> str:
    """Fixed-width text."""
    lines = [f"{'':<58}{'median':>11} {'':<7}{'spread':>23}{'p95':>10}{'floor':>10}{'share':>8}  aim"]
    for figure in figures:
        spread = "" if figure.low is None else f"{figure.low:,.3f} .. {figure.high:,.3f}"
        p95, floor = ("" if value is None else f"{value:,.3f}" for value in (figure.p95, figure.floor))
        share = "" if figure.share is None else f"{figure.share:.0%}"
        what = f"  {figure.name:<56}{figure.value:>11,.3f} {figure.unit:<7}"
        lines.append(f"{what}{spread:>23}{p95:>10}{floor:>10}{share:>8}  {_aim(figure)}".rstrip())
    return "\n".join(lines)


def _aim(figure: Figure) -> str:
    if figure.aim is None:
        return ""
    wanted = f"{figure.aim:.0%}" if figure.share is not None else f"{figure.aim:g}"
    return f"at {'most' if figure.below else 'least'} {wanted}: {figure.verdict}"
