"""Model repositories composed from the shipped one."""

import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from mtserve_backend import repository
from mtserve_backend.config import Config
from mtserve_backend.repository import RepositoryError, UsageError, models_of, parse_settings, read_model, write_model

SHIPPED = repository.shipped() / "hstu"


def parse(path: Path) -> Any:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def parameters(config: Any) -> dict[str, str]:
    return {key: parameter.string_value for key, parameter in config.parameters.items()}


def test_a_model_under_another_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "hstu_device", tmp_path / "w", {"cache_mode": "device"})
    assert folder == tmp_path / "hstu_device"
    assert (folder / "1" / "model.py").read_text() == (SHIPPED / "1" / "model.py").read_text()
    written, source = parse(folder / "config.pbtxt"), parse(SHIPPED / "config.pbtxt")
    assert written.name == "hstu_device"
    assert parameters(written) == parameters(source) | {"cache_mode": "device", "model_dir": str(tmp_path / "w")}
    for config in (written, source):
        config.ClearField("name")
        config.ClearField("parameters")
    assert written == source


def test_several_side_by_side(tmp_path: Path) -> None:
    for mode in ("recompute", "device", "hierarchical"):
        write_model(tmp_path, f"hstu_{mode}", tmp_path / "w", {"cache_mode": mode})
    models = [read_model(folder) for folder in sorted(tmp_path.iterdir())]
    assert [model.parameters["cache_mode"] for model in models] == ["device", "hierarchical", "recompute"]


def test_writing_twice_replaces(tmp_path: Path) -> None:
    write_model(tmp_path, parameters={"threads": "1"})
    write_model(tmp_path, parameters={"threads": "2"})
    assert read_model(tmp_path / "hstu").parameters["threads"] == "2"


def test_weights_default_to_those_of_the_source(tmp_path: Path) -> None:
    write_model(tmp_path / "a")
    assert read_model(tmp_path / "a" / "hstu").weights == SHIPPED / "1" / "weights"
    write_model(tmp_path / "a", weights_dir=tmp_path / "w")
    write_model(tmp_path / "b", source=tmp_path / "a")
    assert read_model(tmp_path / "b" / "hstu").weights == tmp_path / "w"


def test_the_gpu_variant_differs_as_its_heading_says(tmp_path: Path) -> None:
    cpu, gpu = read_model(SHIPPED), read_model(SHIPPED, "gpu")
    assert (cpu.gpus, gpu.gpus) == (None, (0,))
    assert cpu.parameters.keys() == gpu.parameters.keys()
    differing = {key for key in cpu.parameters if cpu.parameters[key] != gpu.parameters[key]}
    assert differing == {"page_tokens", "dtype", "device_cache", "onload_buffer", "host_cache"}
    cpu_config, gpu_config = parse(SHIPPED / "config.pbtxt"), parse(SHIPPED / "configs" / "gpu.pbtxt")
    assert [list(group.gpus) for group in gpu_config.instance_group] == [[0]]
    for config in (cpu_config, gpu_config):
        config.ClearField("parameters")
        config.ClearField("instance_group")
    assert cpu_config == gpu_config
    assert read_model(write_model(tmp_path, config="gpu")).gpus == (0,)


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_every_knob_is_shown(variant: str) -> None:
    shown = read_model(SHIPPED, variant).parameters
    assert shown.keys() == Config.model_fields.keys()
    repository.read_knobs(shown)


def test_what_the_shipped_configuration_must_say() -> None:
    config = parse(SHIPPED / "config.pbtxt")
    assert config.name == SHIPPED.name
    assert all(tensor.allow_ragged_batch for tensor in config.input if -1 in tensor.dims)
    assert not any(tensor.optional for tensor in config.input)
    assert not config.sequence_batching.control_input
    assert config.sequence_batching.oldest.max_queue_delay_microseconds > 0
    assert [(group.count, group.Kind.Name(group.kind)) for group in config.instance_group] == [(1, "KIND_CPU")]


@pytest.mark.parametrize(
    ("overrides", "config", "message"),
    [
        ({"cachemode": "device"}, "cpu", "unknown parameter 'cachemode': did you mean 'cache_mode'?"),
        ({"host_cache": "lots"}, "cpu", "host_cache: 'lots' is not a size"),
        ({"model_dir": "w"}, "cpu", "name the weights' folder (--weights, --model-dir)"),
        ({}, "tpu", "There is no configuration 'tpu'"),
    ],
)
def test_refused(tmp_path: Path, overrides: dict[str, str], config: str, message: str) -> None:
    with pytest.raises(RepositoryError) as refusal:
        write_model(tmp_path / "out", parameters=overrides, config=config)
    assert message in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_a_configuration_that_does_not_parse(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "config.pbtxt").write_text("max_batch_siz: 3")
    with pytest.raises(RepositoryError, match=r"config\.pbtxt is not a valid model configuration: .*max_batch_siz"):
        read_model(folder)


def test_without_tritonclient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(RepositoryError, match="needs tritonclient and protobuf"):
        write_model(tmp_path)


def test_settings() -> None:
    assert parse_settings(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(UsageError):
            parse_settings(wrong)


def test_what_kind_a_model_is(tmp_path: Path) -> None:
    assert [(model.name, model.kind) for model in map(read_model, models_of(SHIPPED.parent))] == [
        ("hstu", "model"),
        ("hstu_router", "router"),
    ]
    assert read_model(SHIPPED.parent / "hstu_router", "gpu").kind == "router", "it is the same on every device"
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other"')
    (tmp_path / "other" / "1" / "model.py").write_text("import numpy")
    assert read_model(tmp_path / "other").kind == "foreign"


def test_what_is_no_repository(tmp_path: Path) -> None:
    for source, said in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "holds no NAME/config.pbtxt"),
        (SHIPPED / "1" / "weights", "named with --weights"),
        (SHIPPED, f"name the folder that it lies in ({SHIPPED.parent})"),
    ):
        with pytest.raises(RepositoryError) as refusal:
            models_of(source)
        assert said in str(refusal.value)


def test_an_unpacked_wheel_has_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As setup.py lays it out; that it does so is tested by building a wheel (test_packaging.py).
    package = tmp_path / "mtserve_backend"
    (package / "model_repository" / "hstu").mkdir(parents=True)
    (package / "model_repository" / "hstu" / "config.pbtxt").touch()
    monkeypatch.setattr(repository, "__file__", str(package / "repository.py"))
    assert repository.shipped() == package / "model_repository"
    (package / "model_repository" / "hstu" / "config.pbtxt").unlink()
    with pytest.raises(RepositoryError, match="reinstall mtserve"):
        repository.shipped()
