"""`mtserve top` at the real server."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mtserve_backend.cli import main
from mtserve_backend.commands.scrape import scrape
from mtserve_backend.embedded import EmbeddedServer
from tests.engine import worlds
from tests.server.lively import MODEL, serving, visit
from tests.server.raw import Raw
from tests.server.test_embedded import within


def test_one_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    worlds.lively_model(tmp_path / "weights")
    monkeypatch.setenv("COLUMNS", "120")
    done = threading.Event()
    with serving(tmp_path / "repository", tmp_path / "weights") as server, closing(Raw("grpc", server)) as raw:

        def live() -> None:
            rng = np.random.default_rng(1)
            histories = {user: worlds.random_history(rng, 40) for user in range(1, 9)}
            while not done.is_set():
                user = int(rng.integers(1, 9))
                raw.send(MODEL, visit(user, histories[user]))

        thread = threading.Thread(target=live)
        thread.start()
        try:
            assert within(20, lambda: scrape(server.metrics_url).value("mtserve_users", MODEL, tier="known") == 8)
            assert main(["top", server.metrics_url, "--once", "--interval", "2"]) == 0
        finally:
            done.set()
            thread.join(30)
    text = capsys.readouterr().out
    assert f"{MODEL}  up" in text
    (requests,) = re.findall(r"requests/s (\d+\.\d)", text)
    assert float(requests) > 10
    (hits,) = re.findall(r"hit ratio (\d+\.\d)%", text)
    assert float(hits) == 100.0, "histories do not grow"
    assert re.search(r"p99 \d+\.\d ms", text)
    assert re.search(r"queue [\d.]+ (us|ms)", text)
    assert "errors/s none" in text
    assert "-\n" not in text.replace("─", "")


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "localhost:1", "--once"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_another_port(server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.http_host, "--once"]) == 1
    assert "metrics port" in capsys.readouterr().err
