"""Ctrl-C, and a polite kill, are not lost where stopping a server takes one for "stop at once"."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_seen = False


def install() -> None:
    """From now on both raise `KeyboardInterrupt`, also where a background job starts with Ctrl-C ignored."""
    for signum in _SIGNALS:
        signal.signal(signum, _note)


def check() -> None:
    """Raises `KeyboardInterrupt` if there has been one, whoever caught it. To be called where work could go on."""
    if _seen:
        raise KeyboardInterrupt


def _note(signum: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt
