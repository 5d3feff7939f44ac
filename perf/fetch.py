"""Get ml-100k wherever a Python package index is: RecBole's wheel carries it. `python -m perf.fetch --help`."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from perf.datasets import DatasetError

PACKAGE = "recbole==1.2.1"
INSIDE_WHEEL = "recbole/dataset_example/ml-100k/"
FILES = ("ml-100k.inter", "ml-100k.item")
RATINGS_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"


def cache_dir() -> Path:
    """$MTSERVE_CACHE, or ~/.cache/mtserve."""
    return Path(os.environ.get("MTSERVE_CACHE") or Path.home() / ".cache" / "mtserve")


def ml_100k(source: Path | None = None) -> Path:
    """The folder that holds ml-100k: `source`, or the cache, filled once through pip. Raises `DatasetError`."""
    if source is not None:
        if not source.exists():
            raise DatasetError(f"there is no {source}: give the folder or file of a MovieLens data set")
        return source
    folder = cache_dir() / "ml-100k"
    if not all((folder / name).is_file() for name in FILES):
        _download(folder)
    _check(folder / FILES[0])
    return folder


def _download(folder: Path) -> None:
    """Through a temporary folder and a rename, so that two processes or a Ctrl-C leave no half a file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        wheels = Path(temporary) / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(wheels), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = sorted(wheels.glob("*.whl"))
        if done.returncode != 0 or not found:
            raise DatasetError(
                f"could not fetch ml-100k ({' '.join(command[1:])} failed). Without a package index, put {FILES[0]} "
                f"and {FILES[1]} into {folder}, or give a MovieLens folder with --from. "
                f"pip said: {done.stderr.strip()[-600:]}"
            )
        fresh = Path(temporary) / "ml-100k"
        fresh.mkdir()
        with zipfile.ZipFile(found[0]) as wheel:
            for name in FILES:
                (fresh / name).write_bytes(wheel.read(INSIDE_WHEEL + name))
        folder.mkdir(exist_ok=True)
        for name in FILES:
            shutil.move(fresh / name, folder / name)


def _check(ratings: Path) -> None:
    digest = hashlib.sha256(ratings.read_bytes()).hexdigest()
    if digest != RATINGS_SHA256:
        raise DatasetError(
            f"{ratings} is not the ml-100k that the committed weights were trained on (sha256 {digest[:12]}..., "
            f"expected {RATINGS_SHA256[:12]}...): delete it to fetch it again, or use it with --from {ratings}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perf.fetch",
        description="Fetch ml-100k into the cache ($MTSERVE_CACHE or ~/.cache/mtserve) and print where it is.",
        epilog="example: python -m perf.fetch",
    )
    parser.add_argument("--from", dest="source", type=Path, help="use this folder or file instead of fetching")
    arguments = parser.parse_args()
    try:
        print(ml_100k(arguments.source))
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
