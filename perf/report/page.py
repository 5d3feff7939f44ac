"""The page: one HTML file, its style and its plots inside, readable on a phone and without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources

from perf.lab.presets import PRESETS
from perf.lab.result import Column, Figure, Result, Table
from perf.lab.text import aim, cell, head, number, spread
from perf.report.plots import svg

BADGES = {
    "paper": "the paper's, on its hardware",
    "calculated": "calculated",
    "counted": "counted",
    "measured": "measured",
}


def page(results: Sequence[Result], title: str = "mtserve: what was measured") -> str:
    """All of it. Results of one command come in the order given."""
    style = resources.files("perf.report").joinpath("style.css").read_text(encoding="utf-8")
    links = "".join(
        f'<a href="#{_id(number, result)}">{_text(f"{result.command}, {result.preset}")}</a>'
        for number, result in _numbered(results)
    )
    sections = "\n".join(_section(number, result) for number, result in _numbered(results))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
<p>Each section is one command, run on the machine that it names. Tables and lines marked as <em>the paper's</em> are
published figures of other hardware: compare ratios, not times.</p>
<nav>{links}</nav>
</header>
<main>
{_aims(results)}
{sections}
</main>
</body>
</html>
"""


def _numbered(results: Sequence[Result]) -> list[tuple[int, Result]]:
    return list(enumerate(results, start=1))


def _aims(results: Sequence[Result]) -> str:
    """What is aimed at, of all commands, first."""
    rows = [(result, figure) for result in results for figure in result.figures if figure.aim is not None]
    if not rows:
        return ""
    lines = "".join(
        f'<tr><td>{_text(result.command)}</td><td class="name">{_text(figure.name)}</td>{_figure_cells(figure)}</tr>'
        for result, figure in rows
    )
    return (
        '<section id="aims"><h2>Aims</h2><div class="wide"><table><thead><tr><th>command</th>'
        '<th class="name">figure</th><th>value</th><th>quartiles</th><th>aim</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _section(number: int, result: Result) -> str:
    plots = "".join(
        f"<figure><figcaption>{_text(plot.title)}</figcaption>{svg(plot)}</figure>" for plot in result.plots
    )
    tables = "".join(map(_table, result.tables))
    return (
        f'<section id="{_id(number, result)}"><h2>perf.{_text(result.command)}</h2>{_about(result)}'
        f'<div class="plots">{plots}</div>{tables}{_figures(result.figures)}</section>'
    )


def _about(result: Result) -> str:
    machine = result.machine
    parts = [
        f"preset {result.preset} ({PRESETS[result.preset].about})" if result.preset in PRESETS else result.preset,
        f"seed {result.seed}",
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('memory_gib')} GiB",
        ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        f"commit {result.commit}",
        f"{result.started}, {result.duration_s:.0f} s",
    ]
    warning = '<p class="missed">Interrupted: this is what was measured until then.</p>' if result.interrupted else ""
    return f'{warning}<p class="about">{_text("; ".join(parts))}</p>'


def _table(table: Table) -> str:
    heads = "".join(f"<th>{_text(head(column))}</th>" for column in table.columns)
    rows = "".join(f"<tr>{_cells(row, table.columns)}</tr>" for row in table.rows)
    note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{_text(table.title)} <span class="badge {table.origin}">{BADGES[table.origin]}</span></h3>'
        f'<div class="wide"><table class="{table.origin}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _cells(row: Sequence[int | float | str | None], columns: Sequence[Column]) -> str:
    return "".join(f"<td>{_text(cell(value, column))}</td>" for value, column in zip(row, columns, strict=True))


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    rows = "".join(f'<tr><td class="name">{_text(figure.name)}</td>{_figure_cells(figure)}</tr>' for figure in figures)
    return (
        f"<details><summary>{len(figures)} figures, with quartiles</summary>"
        '<div class="wide"><table><thead><tr><th>figure</th><th>value</th><th>quartiles</th><th>aim</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _figure_cells(figure: Figure) -> str:
    verdict = figure.verdict.lower()
    aimed = f'<td class="{verdict}">{_text(aim(figure))}</td>' if verdict else "<td></td>"
    return f"<td>{_text(number(figure.value, figure.unit))}</td><td>{_text(spread(figure))}</td>{aimed}"


def _id(number: int, result: Result) -> str:
    return f"{result.command}-{number}"


def _text(text: str) -> str:
    return html.escape(text)
