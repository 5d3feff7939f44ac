"""`mtserve doctor`: what it finds wrong before a server does."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch

from mtserve_backend import repository
from mtserve_backend.cli import main

SHIPPED = repository.shipped()
WEIGHTS = SHIPPED / repository.MODEL / "1" / "weights"
FREE_PORTS = ["--grpc-port=0", "--http-port=0", "--metrics-port=0"]


def problems(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What `mtserve doctor` with these words calls a problem."""
    code = main(["doctor", "--json", *FREE_PORTS, *words])
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    wrong = {check: str(finding["text"]) for check, finding in found.items() if finding["status"] == "problem"}
    assert code == bool(wrong)
    return wrong


@pytest.mark.parametrize("words", [[], ["--weights", str(WEIGHTS)], ["--set", "threads=1"]])
def test_nothing_is_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", *FREE_PORTS, *words])
    report = capsys.readouterr().out
    assert code == 0, report
    assert re.search(r"^ok +numpy +1\.", report, re.MULTILINE)
    assert re.search(r"^ok +memory +the pools take 1\.\d GiB", report, re.MULTILINE)
    assert ("users are divided among hstu" in report) == (words == []), "the router is of the repository"


def test_a_port_and_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = problems(capsys, "--grpc-port", str(taken.getsockname()[1]), "--set", "host_cache=100TiB")
    assert found.keys() == {"grpc port", "memory"}
    assert "lower host_cache" in found["memory"]


def test_the_weights_are_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = problems(capsys, "--weights", str(tmp_path))
    assert "--weights names the folder of config.json and model.safetensors" in found["hstu weights"]
    shutil.copyfile(WEIGHTS / "config.json", tmp_path / "config.json")
    assert "name the weights' folder with --weights" in problems(capsys, "--weights", str(tmp_path))["hstu weights"]


def test_knobs_that_do_not_fit_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    too_small = problems(capsys, "--set", "device_cache=1B")
    assert "device_cache is 1B, less than one slot" in too_small["hstu weights"]
    config = json.loads((WEIGHTS / "config.json").read_text())
    del config["oov_item"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copyfile(WEIGHTS / "model.safetensors", tmp_path / "model.safetensors")
    without = problems(capsys, "--weights", str(tmp_path), "--set", "unknown_items=oov")
    assert "config.json declares no oov_item" in without["hstu weights"]


def test_a_layer_count_beyond_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = json.loads((WEIGHTS / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(given | {"layers": 10**9}))
    assert "layers" in problems(capsys, "--weights", str(tmp_path))["hstu weights"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = problems(capsys, "--config", "gpu")
    assert found.keys() >= {"hstu device"}
    assert "sees no GPU here: use --config cpu" in found["hstu device"]
    assert not any(check.startswith("hstu_router") for check in found)


def test_a_gpu_too_many(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"device {gpu}")
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(tmp_path), "--gpus", "0,1"]) == 0
    capsys.readouterr()
    found = problems(capsys, "--repository", str(tmp_path))
    assert "there is no GPU 1: torch sees 1" in found["hstu_1 device"]
    assert "hstu_0 device" not in found


def test_a_router_without_its_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(tmp_path), "--gpus", "0,1"]) == 0
    capsys.readouterr()
    shutil.rmtree(tmp_path / "hstu_1")
    said = problems(capsys, "--repository", str(tmp_path))["hstu_router parameters"]
    assert "models names hstu_1, which this repository does not hold: there are hstu_0, hstu_router" in said


def test_a_wrong_word_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "hostcache=1GiB", *FREE_PORTS]) == 2
    assert "did you mean 'host_cache'?" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_no_repository(folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert str(tmp_path / folder) in problems(capsys, "--repository", str(tmp_path / folder))["repository"]
