"""HSTU over the paged kernels, against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mtserve_backend.kernels import attention
from mtserve_backend.kernels.layout import Segment
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.contract import Attend, Reuse, Rows
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.models.hstu import HSTU
from tests.models import naive

PAGE_TOKENS = 3
HISTORY = [(3, 1), (7, 0), (3, 2), (11, 1), (0, 0), (5, 2), (7, 1)]
CANDIDATES = [2, 11, 3]


def lively(**changes: Any) -> HSTU:
    """A small float64 model whose every weight matters."""
    fields: dict[str, Any] = {
        "layers": 2, "heads": 2, "head_dim": 4, "hidden": 6, "items": 12, "actions": 3, "max_history": 9,
    }  # fmt: skip
    torch.manual_seed(5)
    model = HSTU(HSTUConfig(**{**fields, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.eval().requires_grad_(False)


class Paged:
    """Attention over pages of its own: the product's kernels without its cache."""

    def __init__(self, model: HSTU, segments: tuple[Segment, ...]) -> None:
        shape = model.kv_shape
        count = sum(-(-segment.length // PAGE_TOKENS) for segment in segments)
        size = (shape.layers, count, 2, shape.heads, PAGE_TOKENS, shape.head_dim)
        self.pages = torch.full(size, torch.nan, dtype=torch.float64)
        self.segments = segments

    def spans(self) -> list[tuple[slice, Attend]]:
        return [(slice(None), self)]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, first = torch.empty_like(q), 0
        for segment in self.segments:
            count = -(-segment.length // PAGE_TOKENS)
            numbers = np.arange(first, first + count)
            attention.append(self.pages[layer], numbers, k, v, segment)
            attention.attend(self.pages[layer], numbers, q, k, v, segment, out)
            first += count
        return out


def outputs(model: HSTU, history: list[tuple[int, int]], candidates: list[int]) -> torch.Tensor:
    count = len(candidates)
    segments = (Segment(0, 0, len(history), count, len(history)),)
    rows = Rows(
        torch.tensor([item for item, _ in history] + candidates),
        torch.tensor([action for _, action in history] + [-1] * count),
        torch.tensor([*range(len(history)), *[len(history)] * count]),
        segments,
    )
    return model.encode(model.embed(rows), Paged(model, segments))


def expected(model: HSTU, history: list[tuple[int, int]], candidates: list[int]) -> np.ndarray:
    config = model.config
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    n = config.attention_n or config.max_history
    return naive.encode(weights, config.layers, config.heads, n, config.norm_eps, history, candidates)


@pytest.mark.parametrize("changes", [{}, {"attention_n": 2, "norm_eps": 0.1}, {"heads": 1, "head_dim": 5, "layers": 3}])
def test_every_row_is_what_the_formulas_say(changes: dict[str, Any]) -> None:
    model = lively(**changes)
    np.testing.assert_allclose(
        outputs(model, HISTORY, CANDIDATES).numpy(), expected(model, HISTORY, CANDIDATES), rtol=1e-9, atol=1e-11
    )


def test_without_history_a_candidate_sees_itself() -> None:
    model = lively()
    np.testing.assert_allclose(
        outputs(model, [], CANDIDATES).numpy(), expected(model, [], CANDIDATES), rtol=1e-9, atol=1e-11
    )


def test_a_row_does_not_depend_on_what_comes_later() -> None:
    model = lively()
    whole, start = outputs(model, HISTORY, CANDIDATES), outputs(model, HISTORY[:4], [])
    torch.testing.assert_close(whole[:4], start, rtol=1e-12, atol=1e-12)
    assert (outputs(model, [(4, 1), *HISTORY[1:]], [])[-1] - whole[len(HISTORY) - 1]).abs().max() > 1e-3


def test_candidates_do_not_see_one_another() -> None:
    model = lively()
    together = outputs(model, HISTORY, CANDIDATES)[len(HISTORY) :]
    for index, candidate in enumerate(CANDIDATES):
        alone = outputs(model, HISTORY, [candidate])[-1]
        torch.testing.assert_close(together[index], alone, rtol=1e-12, atol=1e-12)


def test_an_action_of_none_is_not_action_zero() -> None:
    model = lively()
    one = torch.tensor([1])
    plain, acted = (model.embed(Rows(one, torch.tensor([a]), one, ())) for a in (-1, 0))
    torch.testing.assert_close(acted - plain, model.action_embedding.weight[:1])


def test_scores_by_a_head_of_several_tasks() -> None:
    model = lively(tasks=("click", "buy"), head_hidden=5)
    rows = outputs(model, HISTORY, CANDIDATES)[len(HISTORY) :]
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    scores = model.score(rows, torch.tensor(CANDIDATES))
    assert scores.dtype == torch.float32
    np.testing.assert_allclose(scores.numpy(), [naive.head(weights, row) for row in rows.numpy()], rtol=1e-6)
    assert model.tasks == ("click", "buy")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scoring", ["target", "next_item"])
def test_scores_by_dot_product(tied: bool, scoring: str) -> None:
    """Of each candidate's own row, or of the last history row with all of them."""
    model = lively(tie_output=tied, scoring=scoring)
    rows = outputs(model, HISTORY, CANDIDATES)
    rows = rows[len(HISTORY) :] if scoring == "target" else rows[len(HISTORY) - 1 : len(HISTORY)]
    table = model.state_dict()["item_embedding.weight" if tied else "output_weight"].numpy()
    numbers = rows.numpy().repeat(len(CANDIDATES), 0) if scoring == "next_item" else rows.numpy()
    products = [[sum(numbers[i] * table[item])] for i, item in enumerate(CANDIDATES)]
    np.testing.assert_allclose(model.score(rows, torch.tensor(CANDIDATES)).numpy(), products, rtol=1e-6)
    assert model.scores_last_row == (scoring == "next_item")


def test_the_model_declares_what_it_is() -> None:
    model = lively(window_stride=2)
    assert model.declaration.reuse()[0] is Reuse.EXACT
    assert (model.window.max_history, model.window.stride) == (9, 2)
    assert model.kv_shape.values_per_token == 2 * 2 * 2 * 4


def test_dense_attention_is_the_same_attention() -> None:
    """What models are trained with and timed against. Padding on the right changes nothing."""
    model = lively()
    length = len(HISTORY)
    padded = [*HISTORY, (1, 1), (1, 1)]
    rows = Rows(
        torch.tensor([item for item, _ in padded * 2]),
        torch.tensor([action for _, action in padded * 2]),
        torch.arange(length + 2).repeat(2),
        (),
    )
    dense = model.encode(model.embed(rows), DenseAttention(2, length + 2, model.config.heads))
    for start in (0, length + 2):
        torch.testing.assert_close(dense[start : start + length], outputs(model, HISTORY, []), rtol=1e-9, atol=1e-11)


def test_gradients_flow_through_every_weight() -> None:
    model = lively(tasks=("click",)).requires_grad_(True)
    rows = Rows(torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([0, 1]), ())
    x = model.encode(model.embed(rows), DenseAttention(1, 2, model.config.heads))
    model.score(x, rows.items).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())
