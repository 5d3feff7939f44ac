"""haproxy.cfg as it is shipped, read by the real HAProxy: plain, with TLS, with clients' certificates."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from mtserve_backend.probe import NOBODY
from perf.debian import DebianError
from tests.server.certificates import Authority
from tests.server.haproxy import CONFIG, find


@pytest.mark.parametrize("variables", [(), ("MTSERVE_TLS_CERT",), ("MTSERVE_TLS_CERT", "MTSERVE_TLS_CLIENTS")])
def test_haproxy_accepts_it(variables: tuple[str, ...], tmp_path: Path) -> None:
    try:
        program, environment = find()
    except DebianError as error:
        pytest.skip(f"no haproxy here, and it cannot be fetched: {error}")
    authority = Authority(tmp_path)
    files = {"MTSERVE_TLS_CERT": authority.certificate("server").both, "MTSERVE_TLS_CLIENTS": authority.cert}
    environment |= {name: str(files[name]) for name in variables}
    words = [str(program), "-c", "-f", str(CONFIG)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALERT" not in done.stderr


def test_both_lists_of_servers_are_the_same() -> None:
    text = CONFIG.read_text()
    lists = [
        re.findall(r"^    server (\S+) (\S+?):\d+\" id (\d+)", part, re.MULTILINE)
        for part in re.split(r"^backend ", text, flags=re.MULTILINE)[1:]
    ]
    assert lists[0] == lists[1]
    assert len({number for *_, number in lists[0]}) == len(lists[0]) == 3


def test_its_check_is_a_request_of_the_protocol() -> None:
    (quoted,) = re.findall(r'body "((?:[^"\\]|\\.)*)"', CONFIG.read_text())
    body = json.loads(quoted.replace('\\"', '"'))
    assert body["parameters"] == {"sequence_id": NOBODY, "sequence_start": True, "sequence_end": True}
    assert [tensor["name"] for tensor in body["inputs"]] == [
        "HISTORY_ITEMS", "HISTORY_ACTIONS", "HISTORY_START", "CANDIDATES",
    ]  # fmt: skip
