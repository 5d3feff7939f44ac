"""Append and attend over shuffled, poisoned pages, against loops in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtserve_backend.kernels import attention
from mtserve_backend.kernels.layout import Segment


@dataclass(frozen=True)
class Case:
    """One segment among others' rows, its history on shuffled pages of a layer that has more."""

    heads: int
    head_dim: int
    page_tokens: int
    cached: int
    new: int
    targets: int
    hidden: int  # of the history, from the targets
    before: int  # rows of other segments
    after: int
    spare: int  # pages of others
    tile_rows: int
    gathered_tokens: int | None  # None: pages are attended where they lie
    seed: int

    @property
    def segment(self) -> Segment:
        visible = max(0, self.cached + self.new - self.hidden)
        return Segment(self.before, self.cached, self.new, self.targets, visible)


cases = st.builds(
    Case,
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    page_tokens=st.sampled_from([1, 2, 3, 4, 8, 32]),
    cached=st.integers(0, 20),
    new=st.integers(0, 12),
    targets=st.integers(0, 4),
    hidden=st.integers(0, 1),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    spare=st.integers(0, 3),
    tile_rows=st.sampled_from([256, 1, 2, 5]),
    gathered_tokens=st.sampled_from([None, 32, 64, 1024]),
    seed=st.integers(0, 2**16),
)


class Scene:
    """The tensors of a case. What must not be read is NaN: unused pages, and slots past the cached history."""

    def __init__(self, case: Case) -> None:
        self.case, segment = case, case.segment
        rng = torch.Generator().manual_seed(case.seed)
        width, rows = case.heads * case.head_dim, case.before + segment.rows + case.after
        self.q, self.k, self.v = (torch.randn(rows, width, generator=rng, dtype=torch.float64) for _ in range(3))
        used = -(-segment.length // case.page_tokens)
        self.pages = np.random.default_rng(case.seed).permutation(used + case.spare)[:used].astype(np.int64)
        shape = (used + case.spare, 2, case.heads, case.page_tokens, case.head_dim)
        self.layer = torch.full(shape, torch.nan, dtype=torch.float64)
        self.keys, self.values = (
            torch.randn(segment.length, case.heads, case.head_dim, generator=rng, dtype=torch.float64) for _ in range(2)
        )
        for position in range(case.cached):
            self.slot(position)[:] = torch.stack((self.keys[position], self.values[position]))
        for row in range(segment.new):
            self.keys[case.cached + row] = self.k[case.before + row].view(case.heads, case.head_dim)
            self.values[case.cached + row] = self.v[case.before + row].view(case.heads, case.head_dim)
        self.out = torch.full((rows, width), 7.0, dtype=torch.float64)

    def slot(self, position: int) -> torch.Tensor:
        page, offset = divmod(position, self.case.page_tokens)
        return self.layer[int(self.pages[page]), :, :, offset]

    def expected(self, row: int) -> np.ndarray:
        """Of row `row` of the segment."""
        case, segment = self.case, self.case.segment
        is_target = row >= segment.new
        seen = segment.visible if is_target else case.cached + row + 1
        pairs = [(self.keys[j], self.values[j]) for j in range(seen)]
        mine = [x[case.before + row].view(case.heads, case.head_dim) for x in (self.q, self.k, self.v)]
        if is_target:
            pairs.append((mine[1], mine[2]))
        out = np.zeros((case.heads, case.head_dim))
        for head in range(case.heads):
            for key, value in pairs:
                product = sum(float(mine[0][head, d]) * float(key[head, d]) for d in range(case.head_dim))
                out[head] += product / (1 + math.exp(-product)) * value[head].numpy()
        return out.reshape(-1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases)
def test_attention_over_pages_is_the_sum_it_should_be(case: Case) -> None:
    scene, segment = Scene(case), case.segment
    before = scene.layer.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "TILE_ROWS", case.tile_rows)
        patch.setattr(attention, "VIEWED_PAGE_TOKENS", 1024 if case.gathered_tokens else 1)
        patch.setattr(attention, "GATHERED_TOKENS", case.gathered_tokens or 1)
        attention.append(scene.layer, scene.pages, scene.k, scene.v, segment)
        appended = scene.layer.clone()
        attention.attend(scene.layer, scene.pages, scene.q, scene.k, scene.v, segment, scene.out)
    assert_same(scene.layer, appended, "attend wrote to the pages")
    for row in range(segment.rows):
        np.testing.assert_allclose(scene.out[case.before + row].numpy(), scene.expected(row), rtol=1e-9, atol=1e-10)
    others = [*range(case.before), *range(case.before + segment.rows, len(scene.out))]
    assert (scene.out[others] == 7.0).all(), "rows of other segments were written"
    for position in range(case.cached, segment.length):
        assert torch.equal(scene.slot(position), torch.stack((scene.keys[position], scene.values[position])))
        scene.slot(position)[:] = torch.nan
    assert_same(scene.layer, before, "append wrote outside its slots")


def assert_same(one: torch.Tensor, other: torch.Tensor, message: str) -> None:
    assert torch.equal(one.nan_to_num(99.0), other.nan_to_num(99.0)), message


@pytest.mark.parametrize("parts", [[7], [1] * 7, [3, 4], [0, 5, 0, 2]])
def test_a_history_appended_in_slices_is_the_same(parts: list[int]) -> None:
    case = Case(
        2,
        3,
        4,
        cached=2,
        new=7,
        targets=0,
        hidden=0,
        before=0,
        after=0,
        spare=1,
        tile_rows=256,
        gathered_tokens=1024,
        seed=3,
    )
    whole, sliced = Scene(case), Scene(case)
    attention.append(whole.layer, whole.pages, whole.k, whole.v, case.segment)
    attention.attend(whole.layer, whole.pages, whole.q, whole.k, whole.v, case.segment, whole.out)
    done = 0
    for count in parts:
        part = Segment(done, case.cached + done, count, 0, 0)
        attention.append(sliced.layer, sliced.pages, sliced.k, sliced.v, part)
        attention.attend(sliced.layer, sliced.pages, sliced.q, sliced.k, sliced.v, part, sliced.out)
        done += count
    torch.testing.assert_close(sliced.out, whole.out, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precisions_stay_near_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    case = Case(
        2,
        8,
        32,
        cached=300,
        new=40,
        targets=9,
        hidden=0,
        before=0,
        after=0,
        spare=0,
        tile_rows=256,
        gathered_tokens=1024,
        seed=4,
    )
    exact, rough = Scene(case), Scene(case)
    for name in ("layer", "q", "k", "v", "out"):
        setattr(rough, name, getattr(rough, name).to(dtype))
        setattr(exact, name, getattr(rough, name).double())
    for scene in (exact, rough):
        attention.append(scene.layer, scene.pages, scene.k, scene.v, case.segment)
        attention.attend(scene.layer, scene.pages, scene.q, scene.k, scene.v, case.segment, scene.out)
    error = (rough.out.double() - exact.out).abs().max() / exact.out.abs().max()
    assert error <= tolerance
