"""The documentation's site: it builds, and a link that leads nowhere stops it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import mtserve_backend

ROOT = Path(mtserve_backend.__file__).parent.parent
# What links may lead to, as far as the hooks look.
LINKED = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "docs", "client")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(root / "mkdocs.yml")]
    return subprocess.run([*words, "--site-dir", str(site)], capture_output=True, text=True, check=False)


def test_it_builds_with_every_page(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"client", "security", "contributing", "changelog"}
    assert pages == {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert "mtserve" in (tmp_path / "index.html").read_text()


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in LINKED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    with (root / "docs" / "routing.md").open("a") as page:
        page.write("\n[gone](no_such_page.md) and [gone too](operations.md#no-such-heading)\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    assert "no_such_page.md, which does not exist" in done.stderr
    assert "no-such-heading" in done.stderr
