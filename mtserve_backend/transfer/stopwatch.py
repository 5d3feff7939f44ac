"""How long a stream was at work on some transfer, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mtserve_backend.transfer.streams import CopyStream, Stamp


class Stopwatch:
    """Used by the stream's own thread; `take` is for when its work is done."""

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream
        self._laps: list[tuple[Stamp, Stamp]] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        begin = self._stream.stamp()
        try:
            yield
        finally:
            self._laps.append((begin, self._stream.stamp()))

    def take(self) -> float:
        """Seconds since it was asked last; 0 where the device has failed and no longer knows."""
        laps, self._laps = self._laps, []
        try:
            return sum(begin.seconds_until(end) for begin, end in laps)
        except RuntimeError:
            return 0.0
