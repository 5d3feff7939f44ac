"""A model folder that is right is loaded bit by bit; one that is not is refused with what is wrong with it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtserve_backend.models import weights
from mtserve_backend.models.config import HSTUConfig, ModelConfigError
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.models.weights import WeightsError

FIELDS: dict[str, Any] = {
    "layers": 2, "heads": 2, "head_dim": 4, "hidden": 8, "items": 12, "actions": 3, "max_history": 16,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    weights.save(HSTU(HSTUConfig(**FIELDS)), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    state = load_file(folder / weights.WEIGHTS_FILE)
    change(state)
    save_file(state, folder / weights.WEIGHTS_FILE)


def configure(folder: Path, **changes: Any) -> None:
    (folder / weights.CONFIG_FILE).write_text(json.dumps({**FIELDS, **changes}))


def test_what_was_saved_is_what_is_loaded(folder: Path) -> None:
    loaded = weights.load(folder)
    saved = load_file(folder / weights.WEIGHTS_FILE)
    state = loaded.model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[key], state[key]) for key in saved)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not any(parameter.is_meta for parameter in loaded.model.parameters())


def test_weights_are_converted_to_the_type_asked_for(folder: Path) -> None:
    model = weights.load(folder, dtype=torch.bfloat16).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_missing_key_is_named(folder: Path) -> None:
    rewrite(folder, lambda state: state.pop("layers.1.uvqk.bias"))
    with pytest.raises(WeightsError, match=r"missing: layers\.1\.uvqk\.bias$"):
        weights.load(folder)


def test_an_unexpected_key_is_named(folder: Path) -> None:
    rewrite(folder, lambda state: state.update(surprise=torch.zeros(1)))
    with pytest.raises(WeightsError, match=r"unexpected: surprise$"):
        weights.load(folder)


def test_a_mis_shaped_key_is_named_with_both_shapes(folder: Path) -> None:
    rewrite(
        folder, lambda state: state.update({"output_norm": torch.zeros(1), "item_embedding.weight": torch.zeros(11, 8)})
    )
    with pytest.raises(WeightsError, match=r"mis-shaped: item_embedding\.weight is \[11, 8\] and should be \[12, 8\]"):
        weights.load(folder)


def test_everything_wrong_is_reported_at_once(folder: Path) -> None:
    configure(folder, layers=1, items=13, tasks=["click"])
    with pytest.raises(WeightsError) as error:
        weights.load(folder)
    report = str(error.value)
    assert "missing: head.0.bias, head.0.weight, head.2.bias, head.2.weight;" in report
    assert "unexpected: layers.1.input_norm.bias," in report
    assert "mis-shaped: item_embedding.weight is [12, 8] and should be [13, 8]" in report
    assert str(folder) in report


def test_no_weights_at_all(folder: Path) -> None:
    (folder / weights.WEIGHTS_FILE).unlink()
    with pytest.raises(WeightsError, match=r"there are no weights at .*model\.safetensors: a model folder holds"):
        weights.load(folder)


def test_a_folder_in_the_place_of_the_weights(folder: Path) -> None:
    (folder / weights.WEIGHTS_FILE).unlink()
    (folder / weights.WEIGHTS_FILE).mkdir()
    with pytest.raises(WeightsError, match="there are no weights at"):
        weights.load(folder)


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_by_another_name_is_refused_and_never_run(folder: Path, tmp_path: Path, writer: str) -> None:
    trace = tmp_path / "it ran"
    path = folder / weights.WEIGHTS_FILE
    if writer == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trace)))
    else:
        torch.save({"item_embedding.weight": Bomb(trace)}, path)
    with pytest.raises(WeightsError, match="is not a readable safetensors file"):
        weights.load(folder)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "the bomb is a dud: this test proves nothing"


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(folder: Path, length: int) -> None:
    path = folder / weights.WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(WeightsError, match="is not a readable safetensors file"):
        weights.load(folder)


def test_the_digest_changes_with_any_weight_and_with_the_configuration(folder: Path) -> None:
    digests = {weights.load(folder).digest}
    assert digests == {weights.load(folder).digest}
    rewrite(folder, lambda state: state["layers.0.output.bias"][0].add_(1e-6))
    digests.add(weights.load(folder).digest)
    configure(folder, norm_eps=1e-5)
    digests.add(weights.load(folder).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 0}, "layers: .*greater than or equal to 1"),
        ({"hidden": "many"}, "hidden: "),
        ({"heads": None}, "heads: "),
        ({"colour": 3}, "colour: "),
        ({"architecture": "sasrec"}, "architecture: "),
        ({"scoring": "guess"}, "scoring: "),
        ({"norm_eps": 0}, "norm_eps: "),
        ({"tasks": ["a"], "scoring": "next_item"}, "leave tasks empty"),
        ({"tasks": ["a"], "tie_output": False}, "leave tie_output true"),
        ({"tasks": ["a", "a"]}, "different names"),
        ({"window_stride": 17}, "must not exceed max_history"),
        ({"oov_item": 12}, r"oov_item must be below items \(12\)"),
        ({"oov_item": -1}, "oov_item: "),
    ],
)
def test_a_wrong_configuration_is_refused_by_field(folder: Path, changes: dict[str, Any], said: str) -> None:
    configure(folder, **changes)
    with pytest.raises(ModelConfigError, match=said) as error:
        weights.load(folder)
    assert str(folder / weights.CONFIG_FILE) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00"])
def test_a_configuration_that_is_no_json_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / weights.CONFIG_FILE).write_bytes(content)
    with pytest.raises(ModelConfigError) as error:
        weights.load(folder)
    assert str(folder / weights.CONFIG_FILE) in str(error.value)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"cannot read the model's configuration .*config\.json: No such file"):
        weights.load(tmp_path)


def test_defaults_that_depend_on_other_fields() -> None:
    config = HSTUConfig(**FIELDS)
    assert (config.stride, config.n) == (4, 16)
    assert (HSTUConfig(**{**FIELDS, "max_history": 3}).stride, HSTUConfig(**FIELDS, attention_n=7).n) == (1, 7)
