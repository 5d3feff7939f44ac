"""Whole numbers out of large comma-separated files, some millions of rows a second, in constant memory.

Rows are found and digits are read with numpy, a few megabytes at a time. Only plain digits are numbers here: no signs,
quotes, blanks or fractions, which is how the logs this is for are written; everything else makes a row a bad one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from perf.traces.request import Ints

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 4 << 20
LONGEST_LINE = 1 << 20
# So many digits always fit into 64 bits.
MOST_DIGITS = 18
NEWLINE, RETURN, COMMA, ZERO = 10, 13, 44, 48


@dataclass(frozen=True)
class Chunk:
    """Good rows: `values[row, column]`, columns as asked for, with their line numbers; the bad lines by reason."""

    values: Ints
    lines: Ints
    bad: dict[str, Ints]


def read(file: BinaryIO, header: Sequence[str], wanted: Sequence[str]) -> Iterator[Chunk]:
    """The rest of a file whose first line, the header, has been read. Empty lines are no rows.

    Raises OSError or EOFError as the file does, after all that could be read.
    """
    line = 2
    for text in _whole_lines(file, too_long=b"," * len(header)):
        yield _parsed(np.frombuffer(text, np.uint8), header, wanted, line)
        line += text.count(b"\n")


def _whole_lines(file: BinaryIO, too_long: bytes) -> Iterator[bytes]:
    """The file in portions that end with a line's end.

    The beginning of a line beyond `LONGEST_LINE` is replaced by `too_long`, whose commas make it a bad row.
    """
    rest = b""
    failure: Exception | None = None
    while True:
        try:
            more = file.read(CHUNK_BYTES)
        except (OSError, EOFError) as error:
            more, failure = b"", error
        if not more:
            break
        whole, newline, rest = (rest + more).rpartition(b"\n")
        if newline:
            yield whole + newline
        if len(rest) > LONGEST_LINE:
            rest = too_long
    # A line that a failing read tore apart is no row.
    if failure is not None:
        raise failure
    if rest:
        yield rest + b"\n"


def _parsed(text: Bytes, header: Sequence[str], wanted: Sequence[str], first_line: int) -> Chunk:
    ends = np.flatnonzero(text == NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lines = first_line + np.arange(len(ends), dtype=np.int64)
    # An empty line's "last byte" is the newline before it, or the text's last byte: neither is a return.
    ends = ends - ((text[ends - 1] == RETURN) & (ends > starts))
    commas = np.flatnonzero(text == COMMA)
    first_comma = np.searchsorted(commas, starts)
    count = np.searchsorted(commas, ends) - first_comma
    whole = count == len(header) - 1
    bad = {f"{len(header)} columns expected but not found": lines[~whole & (ends > starts)]}
    starts, ends, lines, first_comma = starts[whole], ends[whole], lines[whole], first_comma[whole]
    values = np.empty((len(lines), len(wanted)), np.int64)
    good = np.ones(len(lines), np.bool_)
    for column, name in enumerate(wanted):
        place = header.index(name)
        begin = starts if place == 0 else commas[first_comma + place - 1] + 1
        end = ends if place == len(header) - 1 else commas[first_comma + place]
        values[:, column], digits = _numbers(text, begin, end)
        bad[f"{name} not a whole number"] = lines[good & ~digits]
        good &= digits
    return Chunk(values[good], lines[good], {reason: at for reason, at in bad.items() if len(at)})


def _numbers(text: Bytes, begin: Ints, end: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The fields as numbers, and which of them are some."""
    width = end - begin
    digits = (width > 0) & (width <= MOST_DIGITS)
    values = np.zeros(len(begin), np.int64)
    for place in range(int(width[digits].max(initial=0))):
        inside = digits & (place < width)
        digit = text[np.where(inside, begin + place, 0)].astype(np.int64) - ZERO
        digits &= ~inside | ((digit >= 0) & (digit <= 9))
        values = np.where(inside & digits, values * 10 + digit, values)
    return values, digits
