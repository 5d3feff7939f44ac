"""The one form in which every measuring command writes what it found: figures, tables of typed rows, plots' series.

A report and a comparison read this and need to know no command. A figure is what is compared from run to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perf.stats import Spread

FORMAT: Literal["mtserve-result"] = "mtserve-result"
VERSION: Literal[1] = 1

Cell: TypeAlias = int | float | str | None
Origin: TypeAlias = Literal["measured", "counted", "calculated", "paper"]
Better: TypeAlias = Literal["lower", "higher", "neither"]


class ResultError(ValueError):
    """A file is no result, or one of another version; the message says which file and why."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Part):
    """A number that matters. `low` and `high` are the quartiles of `samples` measurements; of a count there are none.

    `aim` is the most (better: lower) or the least (better: higher) it should be.
    """

    name: str
    value: float
    unit: str
    better: Better
    low: float | None = None
    high: float | None = None
    samples: int = 1
    aim: float | None = None

    @property
    def verdict(self) -> str:
        """ "met", "MISSED", or nothing where nothing is aimed at."""
        if self.aim is None:
            return ""
        return "met" if (self.value >= self.aim if self.better == "higher" else self.value <= self.aim) else "MISSED"


class Column(_Part):
    """`digits` after the point; shares (unit "%") are kept as fractions."""

    name: str
    unit: str = ""
    digits: int = 1


class Table(_Part):
    """Rows of numbers, texts and None (nothing there). `origin` says where the numbers are from."""

    key: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    origin: Origin = "measured"
    note: str = ""


class Series(_Part):
    """One line, or one group of bars. `low` and `high`: quartiles, where there are any."""

    label: str
    x: list[float | str]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    origin: Origin = "measured"


class Plot(_Part):
    """`stacked`: bars on one another, a series a layer."""

    key: str
    title: str
    kind: Literal["line", "bars", "stacked", "steps"]
    x_label: str
    y_label: str
    series: list[Series]
    log_x: bool = False
    log_y: bool = False


class Result(_Part):
    """One run of one command."""

    format: Literal["mtserve-result"] = FORMAT
    version: Literal[1] = VERSION
    command: str
    preset: str
    seed: int
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    started: str
    """UTC, ISO 8601."""
    duration_s: float
    interrupted: bool = False
    figures: list[Figure] = Field(default_factory=list)
    tables: list[Table] = Field(default_factory=list)
    plots: list[Plot] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_are_keys(self) -> Result:
        for what, names in (
            ("figures", [figure.name for figure in self.figures]),
            ("tables", [table.key for table in self.tables]),
            ("plots", [plot.key for plot in self.plots]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"two {what} are called {twice[0]!r}")
        return self


def figure(
    name: str, value: Spread | float, unit: str, better: Better = "lower", aim: float | None = None, scale: float = 1.0
) -> Figure:
    """Of measurements (their median and quartiles) or of one number; `scale` turns seconds into milliseconds."""
    if isinstance(value, Spread):
        return Figure(
            name=name, value=scale * value.median, unit=unit, better=better, low=scale * value.low,
            high=scale * value.high, samples=value.count, aim=aim,
        )  # fmt: skip
    return Figure(name=name, value=scale * value, unit=unit, better=better, aim=aim)


def save(result: Result, path: Path) -> None:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def load(path: Path) -> Result:
    """Raises `ResultError`."""
    try:
        return Result.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "it is no text"}
        place = ".".join(map(str, first["loc"]))
        raise ResultError(
            f"{path} is no result of this version ({place + ': ' if place else ''}{first['msg']}); a measuring command "
            "writes one with --json"
        ) from error
