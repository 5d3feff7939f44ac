"""Where a figure comes from: machine, versions, commit. Every JSON result carries it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "safetensors", "nvidia-pytriton", "tritonclient", "mtserve", "mtserve-client")


def environment() -> dict[str, Any]:
    return {"machine": machine(), "versions": versions(), "commit": commit()}


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, with a + where files differ from it; "unknown" outside a checkout."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return f"{head}+" if head and _git("status", "--porcelain", "--untracked-files=no") else head or "unknown"


def _git(*arguments: str) -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory_gib() -> float | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
