"""The command line and the clients as far as they go without a server: arguments, files, exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mtserve_client import (
    AsyncRankingClient,
    ClientClosed,
    Events,
    InvalidRequest,
    RankingClient,
    Retry,
    ServerUnavailable,
)
from mtserve_client.cli import _read_history, main

RANK = ["rank", "--user", "5", "--items", "1,2,3", "--actions", "1,1,0", "--candidates", "5,6"]
WARM = ["warm", "--user", "5"]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.json", '{"items": [3, 4], "actions": [1, 0]}'),
        ("h.json", "[[3, 1], [4, 0]]"),
        ("h.csv", "3,1\n4,0\n"),
        ("h.CSV", "item,action\n3,1\n4,0\n"),
        ("h.csv", "time,Action,Item\n9,1,3\n\n9,0,4\n"),
    ],
)
def test_history_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert _read_history(tmp_path / name) == Events.of([(3, 1), (4, 0)])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("h.json", '{"items": [3]}', '"items" and "actions"'),
        ("h.json", '{"items": [3], "actions": []}', "equal length"),
        ("h.json", "[1, 2]", "pairs"),
        ("h.json", "5", "expected"),
        ("h.json", "{", "Expecting"),
        ("h.csv", "item,what\n3,1\n", "columns item and action are needed"),
        ("h.csv", "3,1\n4\n", "event 2"),
        ("h.csv", "3,x\n", "event 1"),
        ("h.txt", "3,1\n", "ends in .json or .csv"),
    ],
)
def test_bad_history_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    assert main([*WARM, "--history", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert name in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["warm", "--user", "five", "--items", "1", "--actions", "1"], "--user-string"),
        (["warm", "--user", "0", "--items", "1", "--actions", "1"], "lies in 1"),
        (["warm", "--user-string", "", "--items", "1", "--actions", "1"], "1 to 128"),
        (WARM, "a history is needed"),
        ([*WARM, "--items", "1"], "a history is needed"),
        ([*WARM, "--items", "1,2", "--actions", "1"], "equal length"),
        ([*WARM, "--items", "1,x", "--actions", "1,1"], "--items: 'x' is not an integer"),
        ([*WARM, "--history", "/nowhere.json"], "cannot read /nowhere.json"),
        ([*WARM, "--history", "a.json", "--items", "1"], "not both"),
        ([*RANK, "--top-k", "0"], "top_k"),
        ([*RANK, "--url", "ftp://x"], "scheme"),
        ([*RANK, "--timeout", "-1"], "timeout_s"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_an_unreachable_server_is_exit_code_3_and_one_line(closed_port: int, scheme: str) -> None:
    url = f"{scheme}localhost:{closed_port}"
    done = subprocess.run(
        [sys.executable, "-m", "mtserve_client.cli", *RANK, "--url", url], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"mtserve-client: {url}: ")
    assert done.stderr.count("\n") == 1


def test_help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["rank", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        said = capsys.readouterr().out
        assert "mtserve-client rank --user 5" in said
        assert "exit codes:" in said


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_clients_without_a_server(closed_port: int, scheme: str) -> None:
    url = f"{scheme}localhost:{closed_port}"
    retry = Retry(attempts=2, first_s=0.01)
    with RankingClient(url, retry=retry) as client, pytest.raises(ServerUnavailable):
        client.warm(5, [(1, 1)])
    with pytest.raises(ClientClosed):
        client.warm(5, [(1, 1)])

    async def same() -> None:
        async with AsyncRankingClient(url, retry=retry) as client:
            with pytest.raises(ServerUnavailable):
                await client.warm(5, [(1, 1)])
        with pytest.raises(ClientClosed):
            await client.warm(5, [(1, 1)])

    asyncio.run(same())


def test_exactly_one_of_history_and_new_events() -> None:
    with RankingClient("localhost:1") as client:
        with pytest.raises(InvalidRequest, match="exactly one"):
            client.rank(5, candidates=[1])
        with pytest.raises(InvalidRequest, match="exactly one"):
            client.rank(5, [(1, 1)], new_events=[(1, 1)], candidates=[1])


def test_bad_options_are_refused() -> None:
    for options in ({"remember_users": 0}, {"remember_tokens": -1}, {"timeout_s": 0}, {"model": ""}):
        with pytest.raises(InvalidRequest):
            RankingClient("localhost:1", **options)  # type: ignore[arg-type]


def test_the_client_needs_neither_torch_nor_the_server_package() -> None:
    code = (
        "import sys, json, mtserve_client\n"
        "for url in ('localhost:1', 'http://localhost:1'): mtserve_client.RankingClient(url).close()\n"
        "print(json.dumps([name for name in ('torch', 'mtserve_backend') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
