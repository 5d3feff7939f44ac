"""What a command found: figures and tables, with where and how. One format for all, so that reports need no other."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from perf.environment import environment
from perf.stats import percentile

FORMAT = 1
Better = Literal["lower", "higher"]


class ResultError(ValueError):
    """A file is no result of these commands; the message says what is wrong with it."""


@dataclass(frozen=True)
class Figure:
    """One number and its spread: the median of `runs` values, their quartiles, and what it should be, if anything.

    `x` and `series` place it in a plot: figures of one `plot` and `series` are a line over `x`.
    """

    name: str
    value: float
    unit: str
    better: Better
    low: float
    high: float
    runs: int
    aim: float | None = None
    plot: str = ""
    series: str = ""
    x: float | None = None

    @property
    def verdict(self) -> str:
        if self.aim is None:
            return ""
        met = self.value <= self.aim if self.better == "lower" else self.value >= self.aim
        return "met" if met else "MISSED"


def figure(
    name: str, values: Sequence[float], unit: str, better: Better = "lower", *, aim: float | None = None,
    plot: str = "", series: str = "", x: float | None = None,
) -> Figure:  # fmt: skip
    """Of several runs. Raises `ValueError` for none."""
    if not values:
        raise ValueError(f"{name}: nothing was measured")
    return Figure(
        name, statistics.median(values), unit, better, percentile(values, 25), percentile(values, 75), len(values),
        aim, plot, series, x,
    )  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of text under `head`; `paper` are the paper's rows on its hardware, or nothing."""

    title: str
    head: list[str]
    rows: list[list[str]]
    paper: list[list[str]] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Result:
    """Of one run of one command."""

    command: str
    preset: str
    seed: int
    started: str
    seconds: float
    figures: list[Figure]
    tables: list[Table]
    interrupted: bool = False
    environment: dict[str, Any] = field(default_factory=environment)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises `ResultError`."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ResultError(f"{path} cannot be read as JSON: {error}") from error
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ResultError(f"{path} is no result of a perf command (`--json FILE` writes one)")
        try:
            found["figures"] = [Figure(**one) for one in found["figures"]]
            found["tables"] = [Table(**one) for one in found["tables"]]
            return cls(**found)
        except (KeyError, TypeError) as error:
            raise ResultError(f"{path} is no result of this version's perf commands: {error}") from error

    def text(self) -> str:
        """For a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for table in self.tables:
            yield from ("", table.title, *aligned([table.head, *table.rows]))
            if table.paper:
                yield from ("  the paper, on its hardware:", *aligned([table.head, *table.paper]))
            if table.note:
                yield f"  {table.note}"
        aimed = [one for one in self.figures if one.aim is not None]
        if aimed:
            yield ""
        for one in aimed:
            sign = "at most" if one.better == "lower" else "at least"
            spread = f"{one.low:,.2f} .. {one.high:,.2f}"
            yield f"{one.name}: {one.value:,.2f} {one.unit} ({spread}); {sign} {one.aim:,g}: {one.verdict}"
        if self.interrupted:
            yield "interrupted: this is what was measured until then"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]  # fmt: skip
