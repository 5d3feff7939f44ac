"""Programs that Debian packages and PyPI does not: fetched with apt's own tools and unpacked, never installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from perf.fetch import cache_dir


class DebianError(RuntimeError):
    """A package cannot be had. The text says why, and what would do instead."""


def unpacked(package: str, program: str) -> Path:
    """The program of a package (a path inside it), fetched once into $MTSERVE_CACHE or ~/.cache/mtserve."""
    folder = cache_dir() / f"debian-{package}"
    if not (folder / program).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled beside its place and renamed: two processes may do this at once, and one may be killed.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / folder.name
            _run(["dpkg-deb", "--extract", str(_download(package, Path(scratch))), str(fresh)], Path(scratch), package)
            if not (fresh / program).is_file():
                raise DebianError(f"Debian's package {package} has no {program}.")
            try:
                fresh.rename(folder)
            except OSError as error:
                if not (folder / program).is_file():  # not the other process's work
                    raise DebianError(f"{folder} is in the way: remove it.") from error
    return folder / program


def _download(package: str, scratch: Path) -> Path:
    """With the machine's lists, or, where it has none (images are shipped without), with lists of our own."""
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise DebianError(f"{package} is fetched as a Debian package, and {needed} is not here.")
    try:
        _run(["apt-get", "download", "--quiet", package], scratch, package)
    except DebianError:
        (scratch / "lists" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", "APT::Sandbox::User=", "-o", "Dir::Cache=cache"]
        _run(["apt-get", *own, "--quiet", "update"], scratch, package)
        _run(["apt-get", *own, "download", "--quiet", package], scratch, package)
    (found,) = scratch.glob(f"{package}_*.deb")
    return found


def _run(words: list[str], folder: Path, package: str) -> None:
    done = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DebianError(f"{package} could not be fetched: `{' '.join(words)}` said: {done.stderr.strip()[-400:]}")
