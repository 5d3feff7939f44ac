"""`python -m perf.report DIR`: every result of a folder on one page."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from perf.lab.result import Result, ResultError, load
from perf.report.page import page
from perf.report.plots import png

PAGE = "index.html"
ABOUT = """\
Make one self-contained HTML page of all results (*.json) in a folder: tables beside the paper's numbers, plots, aims.
It needs no network to be read, and fits a phone."""
EPILOG = """\
example: python -m perf.report results/ --out report.html --png docs/report

exit codes: 0 made; 1 the folder has no results, or one that cannot be read; 2 the command line is wrong"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    out: Path = arguments.out or arguments.folder / PAGE
    try:
        results = read(arguments.folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(results), encoding="utf-8")
        print(f"{out}: {len(results)} results, {out.stat().st_size:,} bytes")
        if arguments.png:
            for path in write_pictures(results, arguments.png):
                print(path)
    except (ResultError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


def read(folder: Path) -> list[Result]:
    """In the order of their files' names. Raises `ResultError`."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ResultError(f"there are no results (*.json) in {folder}: measuring commands write one with --json")
    return [load(file) for file in files]


def write_pictures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Every plot as a PNG file, named after its command and key. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for result in results:
        for plot in result.plots:
            name = re.sub(r"[^a-z0-9]+", "-", f"{result.command} {plot.key}".lower()).strip("-")
            path = folder / f"{name}.png"
            path.write_bytes(png(plot))
            written.append(path)
    return written


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.report",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the results are")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page (default: DIR/{PAGE})")
    parser.add_argument("--png", type=Path, metavar="DIR", help="write every plot here as a PNG file, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
