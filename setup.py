"""The one thing pyproject.toml cannot say: an installed mtserve carries the model repository with it.

In a checkout (and an editable install) model_repository/ lies at the top, where operators look for it; a
wheel gets a copy inside the package. repository.shipped() finds either.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRepository(build_py):
    """build_py, and the copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "mtserve_backend" / "model_repository"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(
                Path(__file__).parent / "model_repository",
                target,
                ignore=shutil.ignore_patterns("__pycache__"),
            )


setup(cmdclass={"build_py": BuildWithRepository})
