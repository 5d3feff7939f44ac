"""The server's log, reduced to what went wrong.

Triton's lines start with a severity and a date (`E1201 03:45:35.630761 4432 backend_model.cc:692] "..."`),
one line per entry with newlines escaped. The same failure is told by three layers; the stub's own output
comes without a prefix.
"""

import re
import threading
from pathlib import Path
from typing import TextIO

_ENTRY = re.compile(r"^([IWEF])\d{4} [\d:.]+\s+\d+ [\w.]+:\d+\]\s*(.*)$")
# Said as errors by a healthy server on a machine without a GPU.
_HARMLESS = ("CudaDriverHelper has not been initialized", "Failed to initialize NVML")
# The prefixes under which Triton's layers repeat one and the same message.
_LAYERS = re.compile(r"^(ERROR: Failed to create instance: |failed to load '[^']+' version \d+: (\w[\w ]*: )?)")
_FREE_FORM = re.compile(
    r"^(error: |Segmentation fault|Bus error|terminate called|\S+: error while loading shared libraries)"
)
_MOST = 12


def read(path: Path, start: int = 0, limit: int = 1 << 20) -> str:
    """A log file from `start` on, and of that the last `limit` bytes at most; empty while there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, start, end - limit))
            return file.read().decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return ""


def errors(log: str) -> list[str]:
    """What the server called an error, each message once, newlines restored."""
    found: dict[str, None] = {}
    for line in log.splitlines():
        entry = _ENTRY.match(line)
        if entry and entry[1] in "EF":
            text = entry[2].strip().strip('"').replace("\\n", "\n").strip()
        elif _FREE_FORM.match(line):
            text = line.strip()
        else:
            continue
        text = _LAYERS.sub("", text)
        if not any(harmless in text for harmless in _HARMLESS):
            found[text] = None
    return list(found)[:_MOST]


def latest(log: str) -> str:
    """The newest entry, for saying what the server is busy with."""
    for line in reversed(log.splitlines()):
        entry = _ENTRY.match(line)
        if entry:
            return entry[2].strip().strip('"')
    return ""


def bind_failed(log: str) -> bool:
    """Whether the server gave up because another process had taken one of its ports."""
    return "already in use" in log or "Address already in use" in log


class Follower:
    """Copies a growing log to a stream, as `tail -f` does, until closed."""

    def __init__(self, path: Path, start: int, stream: TextIO, poll_seconds: float = 0.1) -> None:
        self._path = path
        self._position = start
        self._stream = stream
        self._poll_seconds = poll_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="log-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is left and end."""
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.wait(self._poll_seconds):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._position:  # the keeper has emptied it
                    self._position = 0
                file.seek(self._position)
                fresh = file.read()
        except FileNotFoundError:
            return
        self._position += len(fresh)
        self._stream.write(fresh.decode(errors="replace"))
        self._stream.flush()
