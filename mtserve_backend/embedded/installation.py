"""Finds the tritonserver of the nvidia-pytriton wheel and lays out the private folder it runs from.

What the Python backend needs, and none of it is written down by Triton:
- beside `libtriton_python.so`, the stub built for this Python's minor version; the wheel keeps the stubs
  elsewhere;
- `libpython3.X.so.1.0` on the loader's path: the stub embeds Python;
- this interpreter first on PATH: an embedded Python looks for `python3` there and takes its packages (a
  virtual environment's too) from what it finds. PYTHONPATH and PYTHONHOME are ignored, VIRTUAL_ENV plays no
  part;
- the stub's working directory is the first entry of its `sys.path`. We give it a folder that holds this very
  `mtserve_backend` and nothing else: the server runs the code that started it, installed or not, and no stray
  `numpy.py` of the user's folder is ever imported.
"""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import mtserve_backend
from mtserve_backend.embedded.errors import ServerError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBPYTHON = f"libpython{PYTHON}.so.1.0"
_INSTALL = "install it with `pip install 'mtserve[server]'`"


@dataclass(frozen=True)
class Installation:
    """Where the parts lie."""

    server: Path
    backend: Path
    stub: Path
    libraries: Path
    libpython: Path


def find() -> Installation:
    """The server of the installed wheel; raises ServerError naming the first part that is missing or
    unfit.
    """
    check_numpy()
    root = _pytriton() / "tritonserver"
    stub = root / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        known = sorted(p.name for p in stub.parent.parent.glob("3.*"))
        raise ServerError(
            f"This nvidia-pytriton has no stub for Python {PYTHON} (it has {', '.join(known) or 'none'}): "
            "use one of these Python versions."
        )
    server = root / "bin" / "tritonserver"
    if not os.access(server, os.X_OK):
        raise ServerError(
            f"{server} is missing or not executable: `pip install --force-reinstall nvidia-pytriton==0.7.0`."
        )
    return Installation(
        server=server,
        backend=root / "backends" / "python",
        stub=stub,
        libraries=root.parent.parent / "nvidia_pytriton.libs",
        libpython=find_libpython(),
    )


def check_numpy() -> None:
    """numpy 2 with the stubs of this wheel: every output arrives silently empty. So it is refused."""
    version = installed("numpy")
    if version is None:
        raise ServerError("numpy is not installed, and Triton's Python backend needs it: `pip install 'numpy<2'`.")
    if int(version.split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {version} is installed, but with the Python backend of nvidia-pytriton 0.7 every output "
            "arrives silently empty under numpy 2: `pip install 'numpy<2'` in this environment."
        )


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_libpython() -> Path:
    """The shared library of this Python, its own before the system's."""
    candidates = [folder / LIBPYTHON for folder in _library_folders()]
    for candidate in [*candidates, *_known_to_loader()]:
        if candidate.is_file():
            return candidate
    raise ServerError(
        f"{LIBPYTHON} was not found, and the Python backend embeds it. Python here is {sys.executable}. "
        f"Debian, Ubuntu: `apt-get install libpython{PYTHON}`. "
        f"pyenv: `PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install {PYTHON}`. "
        "Or make the environment with a Python that has it (uv's, conda's, the images named python)."
    )


def lay_out(installation: Installation, folder: Path, interpreter: Path | None = None) -> dict[str, str]:
    """Fill the private folder (symlinks only); returns the environment to start the server with, from
    `work_folder`. With another `interpreter` models find its packages and none of ours.
    """
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for source in [*installation.backend.iterdir(), installation.stub]:
        if source.name != "__pycache__":
            (backend / source.name).symlink_to(source)
    libraries = folder / "lib"
    libraries.mkdir()
    # The one library, not its folder: conda's, for one, holds a libstdc++ and an OpenSSL that the server
    # must not get.
    (libraries / LIBPYTHON).symlink_to(installation.libpython)
    work_folder(folder).mkdir()
    if interpreter is None:
        (work_folder(folder) / "mtserve_backend").symlink_to(Path(mtserve_backend.__file__).resolve().parent)

    environment = dict(os.environ)
    environment["PATH"] = _join(_interpreter_folder(folder, interpreter), environment.get("PATH"))
    environment["LD_LIBRARY_PATH"] = _join(installation.libraries, libraries, environment.get("LD_LIBRARY_PATH"))
    return environment


def work_folder(folder: Path) -> Path:
    """The server's working directory inside the private folder."""
    return folder / "import"


def backends_folder(folder: Path) -> Path:
    """What `--backend-directory` names."""
    return folder / "backends"


def _pytriton() -> Path:
    spec = importlib.util.find_spec("pytriton")  # found, not imported: its import takes a second and needs gevent
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"nvidia-pytriton, which carries the tritonserver, is not installed: {_INSTALL}.")
    return Path(next(iter(spec.submodule_search_locations)))


def _library_folders() -> list[Path]:
    folders = [sysconfig.get_config_var(name) for name in ("LIBDIR", "LIBPL")]
    found = [Path(sys.base_prefix) / "lib", *(Path(folder) for folder in folders if folder)]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    return [*found, *(folder / multiarch for folder in found if multiarch)]


def _known_to_loader() -> list[Path]:
    """Where the dynamic loader's cache has it: another build of the same minor version serves as well."""
    try:
        listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:  # no ldconfig: musl, or a minimal image
        return []
    lines = (line.strip().split(" => ") for line in listing.splitlines())
    return [Path(parts[1]) for parts in lines if len(parts) == 2 and parts[0].startswith(LIBPYTHON)]


def _interpreter_folder(folder: Path, interpreter: Path | None) -> Path:
    """A folder whose `python3` is the interpreter: its own, or (for ours) one with a link where it has no such name
    there.
    """
    if interpreter is not None:
        if not os.access(interpreter.parent / "python3", os.X_OK):
            raise ServerError(f"There is no python3 beside {interpreter}, where the Python backend would look for it.")
        return interpreter.parent
    own = Path(sys.executable).parent
    if (own / "python3").exists() and (own / "python3").samefile(sys.executable):
        return own
    if sys.prefix != sys.base_prefix:  # a link from elsewhere would not find the environment's pyvenv.cfg
        raise ServerError(f"The environment {sys.prefix} has no bin/python3 that is {sys.executable}: create it anew.")
    link = folder / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    return link.parent


def _join(*entries: Path | str | None) -> str:
    return os.pathsep.join(str(entry) for entry in entries if entry)
