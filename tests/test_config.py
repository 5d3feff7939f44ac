"""Every knob is validated, and what is wrong is said with the knob's name."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from mtserve_backend.config import TRITON_KEYS, Config, ConfigError, knob_table, weights_folder
from mtserve_backend.kernels.layout import KVShape
from mtserve_backend.startup import plan_geometry

WRONG = {
    "cache_mode": ["none", "HIERARCHICAL"],
    "page_tokens": ["0", "4097", "many", "1.5"],
    "chunk_tokens": ["0", "65537", "x"],
    "device_cache": ["5", "1 furlong", "-1GiB"],
    "onload_buffer": ["half"],
    "host_cache": ["4 GigaBytes"],
    "host_memory": ["paged"],
    "copy_workers": ["0", "65"],
    "offload_quota_tokens": ["-1", "x"],
    "user_log": ["lots"],
    "pass_tokens": ["15", "x"],
    "max_candidates": ["0"],
    "max_events": ["0"],
    "max_user_id_bytes": ["0", "129"],
    "zero_on_free": ["perhaps"],
    "unknown_items": ["ignore"],
    "dtype": ["fp8", "bf16"],
    "threads": ["-1", "1025"],
    "transfer_timeout_s": ["0", "-1", "soon"],
    "request_timeout_s": ["0", "x"],
    "check_books": ["perhaps"],
}


@pytest.mark.parametrize(("knob", "value"), [(knob, value) for knob, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_name(knob: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"\b{knob}: ") as error:
        Config.from_parameters({knob: value})
    assert repr(value) in str(error.value)


def test_every_knob_that_can_be_wrong_is_tried() -> None:
    assert WRONG.keys() == Config.model_fields.keys() - {"model_dir"}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("page_token", "page_tokens"),
        ("DEVICE_CACHE", "device_cache"),
        ("hostcache", "host_cache"),
        ("thread", "threads"),
    ],
)
def test_an_unknown_knob_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown parameter '{key}': did you mean '{nearest}'\?"):
        Config.from_parameters({key: "1"})


def test_a_knob_like_no_other_is_shown_all_of_them() -> None:
    with pytest.raises(ConfigError, match=r"unknown parameter 'zzz': known are cache_mode, .*user_log"):
        Config.from_parameters({"zzz": "1"})


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as unknown:
        Config.from_parameters({"zzz": "1", "page_token": "1"})
    assert str(unknown.value).count("unknown parameter") == 2
    with pytest.raises(ConfigError, match=r"page_tokens: .*; threads: "):
        Config.from_parameters({"page_tokens": "0", "threads": "-1"})


def test_tritons_own_keys_are_not_ours() -> None:
    assert Config.from_parameters(dict.fromkeys(TRITON_KEYS, "x")) == Config()


def test_empty_values_are_defaults() -> None:
    assert Config.from_parameters({"page_tokens": "", "device_cache": "", "model_dir": ""}) == Config()


def test_a_chunk_is_whole_pages() -> None:
    with pytest.raises(ConfigError, match=r"chunk_tokens \(100\) must be a multiple of page_tokens \(32\)"):
        Config.from_parameters({"chunk_tokens": "100"})
    assert Config.from_parameters({"chunk_tokens": "96"}).chunk_tokens == 96


def test_the_log_is_given_in_bytes() -> None:
    with pytest.raises(ConfigError, match="user_log is given in bytes"):
        Config.from_parameters({"user_log": "100 pages"})


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().page_tokens = 64  # type: ignore[misc]


def test_the_table_has_every_knob_described() -> None:
    table = knob_table()
    for name, field in Config.model_fields.items():
        assert f"| `{name}` | `{field.default!s}` | " in table
        assert field.description


@pytest.mark.parametrize(
    ("given", "found"), [("", "/models/hstu/1/weights"), ("other", "/models/hstu/1/other"), ("/a", "/a")]
)
def test_where_the_weights_are(given: str, found: str) -> None:
    assert weights_folder(Config(model_dir=given), Path("/models/hstu/1")) == Path(found)


KV = KVShape(layers=2, heads=2, head_dim=4)
SIZES = {"device_cache": "64 pages", "onload_buffer": "8 pages", "host_cache": "4 chunks"}


@pytest.mark.parametrize(
    ("mode", "device", "onload", "host"),
    [("hierarchical", 64, 8, 4), ("device", 64, 0, 0), ("recompute", 0, 0, 0)],
)
def test_a_mode_gets_the_pools_it_needs(mode: str, device: int, onload: int, host: int) -> None:
    geometry = plan_geometry(Config(**SIZES), mode, KV, torch.float32)
    assert (geometry.device_pages, geometry.onload_pages, geometry.host_chunks) == (device, onload, host)


@pytest.mark.parametrize("knob", ["device_cache", "host_cache"])
def test_a_pool_smaller_than_a_slot_is_refused(knob: str) -> None:
    with pytest.raises(ConfigError, match=rf"{knob} is 1KiB, less than one slot"):
        plan_geometry(Config(**{**SIZES, knob: "1KiB"}), "hierarchical", KV, torch.float32)


def test_the_onload_buffer_may_be_nothing() -> None:
    config = Config(**{**SIZES, "onload_buffer": "0 pages"})
    assert plan_geometry(config, "hierarchical", KV, torch.float32).onload_pages == 0
