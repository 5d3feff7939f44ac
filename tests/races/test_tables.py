"""The two tables of docs/ are about this code: every test named exists, every ordering is listed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.races import waits
from tests.races.mutate_waits import PAGE, ROOT


def test_every_test_that_docs_faults_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text())
    assert len(named) > 20
    missing = [name for file, name in named if f"def {name}(" not in Path(ROOT / file).read_text()]
    assert not missing


def test_docs_waits_lists_what_orders_two_streams_and_all_of_it_is_noticed() -> None:
    """After a change of these calls: `python -m tests.races.mutate_waits`, some minutes."""
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` (\S+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = [(text, file, function) for text, file, function, _ in rows]
    assert listed == [(wait.text, wait.file, wait.function) for wait in waits.find(ROOT / "mtserve_backend")]
    assert not [row for row in rows if "**nothing**" in row[3]]
