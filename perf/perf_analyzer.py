"""The real perf_analyzer, without a container and without a newer glibc.

The current wheel (perf-analyzer 2.60) needs glibc 2.38. The one in tritonclient 2.41's manylinux1 wheel runs
wherever tritonserver runs, once two libraries are found under their plain names; nvidia-pytriton carries both
under hashed ones.

    python -m perf.perf_analyzer -- -m hstu -u localhost:8001 -i grpc --input-data inputs.json
    python -m perf.perf_analyzer --fetch-only

Fetched once into $MTSERVE_CACHE (default ~/.cache/mtserve).
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_VERSION = "2.41.0"
_MEMBER = f"tritonclient-{_VERSION}.data/data/bin/perf_analyzer"
# The names it asks for, and how nvidia_pytriton.libs calls them.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class PerfAnalyzerError(RuntimeError):
    """perf_analyzer cannot be had, or its run failed. The text says why."""


@dataclass(frozen=True)
class Report:
    """The last measurement that perf_analyzer printed."""

    requests: int
    throughput: float
    """Answers a second."""
    latency_us: dict[str, int]
    """Microseconds by statistic: "Avg", "p50", "p90", "p95", "p99"."""
    text: str
    """All that it printed."""


def cache_folder() -> Path:
    """Where fetched things lie."""
    return Path(os.environ.get("MTSERVE_CACHE") or Path.home() / ".cache" / "mtserve")


def ensure() -> Path:
    """The folder with `perf_analyzer` and its two libraries, fetched if need be."""
    folder = cache_folder() / f"perf_analyzer-{_VERSION}"
    if not (folder / "perf_analyzer").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled beside its place and renamed: two processes may do this at once, and one may be killed.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / folder.name
            fresh.mkdir()
            _unpack(_download(Path(scratch)), fresh)
            try:
                fresh.rename(folder)
            except OSError as error:
                if not (folder / "perf_analyzer").is_file():  # not the other process's work
                    raise PerfAnalyzerError(f"{folder} is in the way: remove it.") from error
    _link_libraries(folder)
    return folder


def command(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words and the environment that run it."""
    folder = ensure()
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return [str(folder / "perf_analyzer"), *arguments], {**os.environ, "LD_LIBRARY_PATH": path}


def run(arguments: Sequence[str], timeout: float = 600.0) -> Report:
    """Run it to its end. Raises PerfAnalyzerError when it or a request failed, or nothing was measured."""
    words, environment = command(arguments)
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PerfAnalyzerError(f"perf_analyzer did not end within {timeout:.0f} s.") from error
    if done.returncode != 0:
        said = done.stdout.split("\nUsage: ")[0]  # a wrong option is followed by 300 lines of help
        raise PerfAnalyzerError(f"perf_analyzer ended with code {done.returncode}:\n{said[-4000:]}")
    return parse(done.stdout)


def parse(text: str) -> Report:
    """Read what it printed. Raises PerfAnalyzerError as `run` does."""
    failure = re.search(r"(?im)^.*(request failed|failed to|failed requests?: [1-9]).*$", text)
    if failure:
        raise PerfAnalyzerError(f"perf_analyzer reports '{failure[0].strip()}':\n{text[-4000:]}")
    requests = re.findall(r"Request count: (\d+)", text)
    throughput = re.findall(r"Throughput: ([\d.]+) infer/sec", text)
    latency = re.findall(r"(Avg|p\d+) latency: (\d+) usec", text)
    if not (requests and throughput and latency):
        raise PerfAnalyzerError(f"perf_analyzer measured nothing:\n{text[-4000:]}")
    return Report(int(requests[-1]), float(throughput[-1]), {name: int(value) for name, value in latency}, text)


def _download(folder: Path) -> Path:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--only-binary=:all:", "--platform=manylinux1_x86_64", f"--dest={folder}"]
    words += [f"tritonclient=={_VERSION}"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise PerfAnalyzerError(
            f"perf_analyzer could not be fetched: `{' '.join(words)}` said:\n{done.stderr.strip()}\n"
            "Without a network, unpack data/bin/perf_analyzer of that wheel into "
            f"{cache_folder() / f'perf_analyzer-{_VERSION}'} by hand."
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> None:
    target = folder / "perf_analyzer"
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    target.chmod(0o755)


def _link_libraries(folder: Path) -> None:
    """Each time: the environment with nvidia-pytriton may have moved since."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise PerfAnalyzerError(
            "nvidia-pytriton, which has two libraries that perf_analyzer needs, is not installed: "
            "`pip install 'mtserve[server]'`."
        )
    libraries = Path(next(iter(spec.submodule_search_locations))).parent / "nvidia_pytriton.libs"
    for name, pattern in _LIBRARIES.items():
        found = sorted(libraries.glob(pattern))
        if not found:
            raise PerfAnalyzerError(f"There is no {pattern} in {libraries}: reinstall nvidia-pytriton==0.7.0.")
        link = folder / name
        if link.resolve() != found[0].resolve():
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.symlink_to(found[0])
            fresh.replace(link)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.perf_analyzer", description="Run the real perf_analyzer, fetched if need be."
    )
    parser.add_argument("--fetch-only", action="store_true", help="fetch it, say where it is, and end")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGS", help="perf_analyzer's own arguments, after --")
    options = parser.parse_args(arguments)
    try:
        if options.fetch_only:
            print(ensure() / "perf_analyzer")
            return 0
        words, environment = command(options.arguments)
    except PerfAnalyzerError as error:
        print(f"perf_analyzer: {error}", file=sys.stderr)
        return 1
    return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
