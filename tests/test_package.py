"""`mtserve package`: what it writes, and what it refuses."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import mtserve_backend
from mtserve_backend import repository
from mtserve_backend.cli import main
from mtserve_backend.commands.package import PackageOptions, copy_served, package
from mtserve_backend.config import Config
from mtserve_backend.repository import read_knobs, read_model
from tests.server.bare import closure

SHIPPED = repository.shipped() / "hstu"
WEIGHTS = SHIPPED / "1" / "weights"


def test_the_folder(tmp_path: Path) -> None:
    (folder,) = package(PackageOptions(WEIGHTS, tmp_path, "ranker", settings={"threads": "1", "host_cache": "2GiB"}))
    assert folder == tmp_path / "ranker"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ranker"], "nothing is left behind"
    assert sorted(entry.name for entry in (folder / "1").iterdir()) == ["model.py", "mtserve_backend", "weights"]
    assert sorted(entry.name for entry in (folder / "1" / "weights").iterdir()) == ["config.json", "model.safetensors"]
    model = read_model(folder)
    assert model.weights == folder / "1" / "weights"
    assert model.parameters == read_model(SHIPPED).parameters | {"threads": "1", "host_cache": "2GiB"}
    text = (folder / "config.pbtxt").read_text()
    assert 'name: "ranker"' in text
    assert all(f"# {spec.description}\n" in text for spec in Config.model_fields.values()), "each knob is explained"


def test_triton_options_and_gpus(tmp_path: Path) -> None:
    options = PackageOptions(WEIGHTS, tmp_path, gpus=(0, 3), max_batch_size=8, queue_delay_us=50, max_waiting_users=9)
    *folders, router = package(options)
    assert [folder.name for folder in folders] == ["hstu_0", "hstu_3"]
    config = text_format.Parse((router / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert config.name == router.name == "hstu_router"
    assert config.parameters["models"].string_value == "hstu_0,hstu_3"
    assert package(options)[-1] == router, "it takes the older one's place"
    for folder, gpu in zip(folders, (0, 3), strict=True):
        config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        (group,) = config.instance_group
        assert (group.Kind.Name(group.kind), group.count, list(group.gpus)) == ("KIND_GPU", 1, [gpu])
        oldest = config.sequence_batching.oldest
        found = (config.max_batch_size, oldest.max_queue_delay_microseconds, oldest.max_candidate_sequences)
        assert found == (8, 50, 9)
        read_knobs(read_model(folder).parameters)


def test_one_gpu_keeps_the_name(tmp_path: Path) -> None:
    assert package(PackageOptions(WEIGHTS, tmp_path, gpus=(1,))) == [tmp_path / "hstu"]


def test_what_is_served_imports_nothing_but_torch_numpy_and_nvtx(tmp_path: Path) -> None:
    """`triton` is imported where a kernel is launched: on a GPU, where torch brings it."""
    copy_served(tmp_path / "mtserve_backend")
    modules = sorted((tmp_path / "mtserve_backend").rglob("*.py"))
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "nvtx", "triton", "triton_python_backend_utils"}
    assert len(modules) > 40
    for module in modules:
        for node in ast.walk(_without_type_checking(ast.parse(module.read_text()))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.startswith("mtserve_backend"):
                    parts = name.split(".")
                    here = [tmp_path.joinpath(*parts[:n]) for n in (len(parts), len(parts) - 1)]
                    assert any(p.is_dir() or p.with_suffix(".py").is_file() for p in here), f"{module}: {name}"
                    assert not any(p.name in ("commands", "embedded") for p in here)
                elif not (module.name == "weights.py" and name == "safetensors.torch.save_file"):
                    assert name.split(".")[0] in allowed, f"{module}: {name}"


def _without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [
        node for node in tree.body
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    ]  # fmt: skip
    return tree


def test_the_bare_environment_is_bare() -> None:
    assert not closure(("torch", "numpy", "nvtx")) & {"pydantic", "safetensors", "mtserve", "tritonclient", "protobuf"}


def test_packaging_again_replaces(tmp_path: Path) -> None:
    package(PackageOptions(WEIGHTS, tmp_path, settings={"threads": "1"}))
    (tmp_path / "hstu" / "1" / "stale").touch()
    package(PackageOptions(WEIGHTS, tmp_path, settings={"threads": "2"}))
    assert read_model(tmp_path / "hstu").parameters["threads"] == "2"
    assert not (tmp_path / "hstu" / "1" / "stale").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["hstu"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "../x"], "is no model's name"),
        (["--gpus", "0,0"], "no list of different GPUs"),
        (["--max-batch-size", "0"], "--max-batch-size is 0; it must be 1 to 1024"),
        (["--queue-delay-us", "0"], "--queue-delay-us is 0"),
        (["--set", "hostcache=1GiB"], "did you mean 'host_cache'?"),
        (["--set", "model_dir=/x"], "name the weights' folder (--weights, --model-dir)"),
        (["--set", "threads="], "'threads=' has no value"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(out), *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "device_cache=1B"], "device_cache is 1B, less than one slot"),
        (["--model-dir", "/nowhere"], "cannot read the model's configuration"),
    ],
)
def test_what_a_load_would_refuse(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(out), *words]) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_knob_that_the_model_has_no_row_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((WEIGHTS / "config.json").read_text())
    del config["oov_item"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copyfile(WEIGHTS / "model.safetensors", tmp_path / "model.safetensors")
    words = ["package", "--model-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--set", "unknown_items=oov"]) == 1
    assert "config.json declares no oov_item" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(words) == 0


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert str(tmp_path / "file") in said
    assert "Traceback" not in said


def test_weights_that_do_not_load_replace_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package(PackageOptions(WEIGHTS, tmp_path / "out"))
    before = (tmp_path / "out" / "hstu" / "1" / "weights" / "model.safetensors").read_bytes()
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_text((WEIGHTS / "config.json").read_text())
    torch.save({}, bad / "model.safetensors")
    assert main(["package", "--model-dir", str(bad), "--out", str(tmp_path / "out")]) == 1
    assert "not a readable safetensors file" in capsys.readouterr().err
    assert (tmp_path / "out" / "hstu" / "1" / "weights" / "model.safetensors").read_bytes() == before


def test_a_folder_of_others_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hstu").mkdir()
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(tmp_path)]) == 1
    assert "was not written by `mtserve package`" in capsys.readouterr().err
    assert list((tmp_path / "hstu").iterdir()) == []


def test_the_command_prints_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", "--model-dir", str(WEIGHTS), "--out", str(tmp_path), "--gpus", "0,1"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"hstu_{name}") for name in ("0", "1", "router")]
    assert (tmp_path / "hstu_0" / "1" / "mtserve_backend" / "engine.py").read_text() == (
        Path(mtserve_backend.__file__).parent / "engine.py"
    ).read_text()
