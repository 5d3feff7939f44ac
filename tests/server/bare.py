"""A Python environment with torch, numpy, nvtx and what these three need; nothing of ours, and nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOTS = ("torch", "numpy", "nvtx")


def bare_environment(folder: Path) -> Path:
    """Make it of links to what is installed here; returns its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in closure(ROOTS):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return folder / "bin" / "python3"


def closure(names: tuple[str, ...]) -> set[str]:
    """Distributions and what they require, as installed here; extras are left out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requires = importlib.metadata.distribution(name).requires or []
        except importlib.metadata.PackageNotFoundError:  # of another platform
            continue
        found.add(name)
        waiting += [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in requires if "extra ==" not in text]
    return found


def missing(interpreter: Path, modules: tuple[str, ...]) -> set[str]:
    """Which of these cannot be imported there."""
    code = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    words = [str(interpreter), "-I", "-c", code, *modules]
    return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
