"""The router's knobs, right and wrong."""

from __future__ import annotations

import pytest

from mtserve_backend.config import ConfigError
from mtserve_backend.routing.config import RouterConfig


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({}, "must name at least one model"),
        ({"models": "a,,b"}, "must name at least one model"),
        ({"models": "a, b,a"}, "names a model twice"),
        ({"models": "a", "call_per_model": "3"}, "did you mean 'calls_per_model'"),
        ({"models": "a", "calls_per_model": "0"}, "calls_per_model"),
        ({"models": "a", "max_waiting": "many"}, "max_waiting"),
    ],
)
def test_what_is_wrong_is_refused_and_said(parameters: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RouterConfig.from_parameters(parameters)


def test_names_are_read_with_blanks_between() -> None:
    config = RouterConfig.from_parameters({"models": "hstu_0, hstu_1", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"})
    assert config.names == ("hstu_0", "hstu_1")
    config.check_not_among("hstu_router")
    with pytest.raises(ConfigError, match="this router itself"):
        config.check_not_among("hstu_1")
