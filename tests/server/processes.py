"""The processes of a server's models."""

from __future__ import annotations

from pathlib import Path

from mtserve_backend.embedded import EmbeddedServer


def stub(server: EmbeddedServer, model: str) -> int:
    """The process ID of a model's Python."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == server.pid and any(f"/{model}/".encode() in word for word in words):
            return int(entry.name)
    raise AssertionError(f"no process of {model}")
