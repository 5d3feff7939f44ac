"""perf.metrics_cost compares what it says: the same model, publishing and not."""

from __future__ import annotations

from pathlib import Path

from perf.metrics_cost import EVERY, NEVER, repository_of


def test_the_two_differ_in_publishing_alone(tmp_path: Path) -> None:
    on, off = (repository_of(tmp_path / name, name == "on") for name in ("on", "off"))
    files = {path.relative_to(on) for path in on.rglob("*") if path.is_file()}
    assert files == {path.relative_to(off) for path in off.rglob("*") if path.is_file()}
    differing = [file for file in files if (on / file).read_bytes() != (off / file).read_bytes()]
    assert [file.name for file in differing] == ["publisher.py"]
    assert (on / differing[0]).read_text().replace(EVERY, NEVER) == (off / differing[0]).read_text()
