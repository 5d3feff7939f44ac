"""What a declaration allows, and where a window starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtserve_backend.models.contract import Declaration, Reuse, Window


@pytest.mark.parametrize(
    ("mask", "positions", "scale", "policy", "reason"),
    [
        ("causal", "start", "constant", Reuse.EXACT, "causal mask"),
        ("bidirectional", "start", "constant", Reuse.NEVER, "attend to later tokens"),
        ("causal", "end", "constant", Reuse.NEVER, "counted from the end"),
        ("causal", "start", "batch", Reuse.NEVER, "scaled by the batch"),
        ("bidirectional", "end", "batch", Reuse.NEVER, "attend to later tokens"),
    ],
)
def test_only_what_cannot_change_between_visits_is_kept(
    mask: str, positions: str, scale: str, policy: Reuse, reason: str
) -> None:
    reuse, why = Declaration(mask, positions, scale).reuse()  # type: ignore[arg-type]
    assert reuse is policy
    assert reason in why


@pytest.mark.parametrize(
    ("length", "start"), [(0, 0), (10, 0), (11, 4), (14, 4), (15, 8), (18, 8), (19, 12), (1000, 992)]
)
def test_the_window_moves_in_strides(length: int, start: int) -> None:
    assert Window(max_history=10, stride=4).start(length) == start


@given(st.integers(1, 50), st.data())
def test_a_window_is_the_longest_that_fits_and_is_never_empty(max_history: int, data: st.DataObject) -> None:
    window = Window(max_history, data.draw(st.integers(1, max_history)))
    length = data.draw(st.integers(0, 500))
    start = window.start(length)
    multiples = range(0, length + window.stride, window.stride)
    assert start == next(s for s in multiples if length - s <= max_history)
    assert length == 0 or start < length
    assert window.start(length + 1) in (start, start + window.stride)
