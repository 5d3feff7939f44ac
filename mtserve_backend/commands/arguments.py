"""What the options of the command line accept: each turns a word into a value, or says what would be right."""

import argparse
import math
from pathlib import Path


def path(text: str) -> Path:
    """A file or a folder; an empty word, as of an unset variable, is none."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a path (. is this folder)")
    return Path(text)


def address(text: str) -> str:
    """An address to listen on."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name an address, as 127.0.0.1")
    return text


def positive_seconds(text: str) -> float:
    """A time that is more than none."""
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a time: more than 0 seconds")
    return seconds


def whole_seconds(text: str) -> int:
    """A time that may be none."""
    return _whole(text, "is not a time: 0 or more whole seconds")


def verbosity(text: str) -> int:
    """Triton's levels."""
    return _whole(text, "is not a level: 0 (no debugging output) or more")


def interval(text: str) -> float:
    """Between two looks at a server."""
    seconds = _number(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not an interval: 0.1 to 3600 seconds")
    return seconds


def gpus(text: str) -> tuple[int, ...]:
    """Numbers with commas between."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs, as in 0 or 0,1") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error


def _whole(text: str, otherwise: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} {otherwise}")
    return int(text)
