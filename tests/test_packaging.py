"""The wheel carries the model repository."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import mtserve_backend

ROOT = Path(mtserve_backend.__file__).parent.parent


def test_the_wheel_holds_the_model_repository(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("mtserve_backend", "model_repository", "perf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))

    # No isolation: the environment's own setuptools, so that no network is needed.
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*words, f"--wheel-dir={tmp_path}", str(source)], check=True)
    (wheel,) = tmp_path.glob("mtserve-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    model = "mtserve_backend/model_repository/hstu"
    for name in ("config.pbtxt", "configs/gpu.pbtxt", "1/model.py", "1/weights/model.safetensors"):
        assert f"{model}/{name}" in names
