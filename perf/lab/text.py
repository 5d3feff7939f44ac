"""Results for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from perf.lab.result import Cell, Column, Figure, Result, Table

ORIGINS = {"paper": " [the paper's]", "calculated": " [calculated]", "counted": " [counted]", "measured": ""}


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right, a line under the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in cells)
        for row in rows
        for cells in [list(enumerate(zip(row, widths, strict=True)))]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def cell(value: Cell, column: Column) -> str:
    """As a reader expects it: shares in per cent, thousands apart, a dash where there is nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, str):
        return value
    if column.unit == "%":
        return f"{value:.{column.digits}%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{column.digits}f}{'x' if column.unit == 'x' else ''}"


def head(column: Column) -> str:
    return column.name if column.unit in ("", "%", "x") else f"{column.name}, {column.unit}"


def number(value: float, unit: str) -> str:
    """A figure's value: three digits that count."""
    if math.isnan(value):
        return "-"
    if unit == "%":
        return f"{value:.2%}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    text = f"{value:,.{digits}f}"
    return f"{text}x" if unit == "x" else f"{text} {unit}".rstrip()


def spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{number(figure.low, figure.unit)} .. {number(figure.high, figure.unit)}"


def aim(figure: Figure) -> str:
    """What it should be, and whether it is."""
    if figure.aim is None:
        return ""
    bound = "at least" if figure.better == "higher" else "at most"
    return f"{bound} {number(figure.aim, figure.unit)}: {figure.verdict}"


def table_text(table: Table) -> str:
    rows = [[cell(value, column) for value, column in zip(row, table.columns, strict=True)] for row in table.rows]
    lines = [f"{table.title}{ORIGINS[table.origin]}", aligned([[head(column) for column in table.columns], *rows])]
    return "\n".join([*lines, f"({table.note})"] if table.note else lines)


def result_text(result: Result) -> Iterator[str]:
    """In paragraphs."""
    yield from map(table_text, result.tables)
    if result.figures:
        rows = [
            [figure.name, number(figure.value, figure.unit), spread(figure), f"{figure.samples:,}", aim(figure)]
            for figure in result.figures
        ]
        yield aligned([["figure", "value", "quartiles", "of", "aim"], *rows])
