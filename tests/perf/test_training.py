"""Training on a tiny synthetic data set: the same twice, and it learns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from perf.evaluate import evaluate, evaluate_popularity, held_out
from perf.movielens import History
from perf.training import Epoch, Recipe, train

ITEMS = 13
TINY = Recipe(
    hidden=16, layers=1, heads=2, max_history=16, dropout=0.1, embedding_dropout=0.0, epochs=30, learning_rate=1e-2,
    tokens_per_batch=128, patience=30,
)  # fmt: skip


def histories(users: int = 40, length: int = 12) -> list[History]:
    """Every user walks the same circle of 12 items from another start: the next item is certain, popularity is flat."""
    return [
        History(str(user), *_walk(user * 5, length - user % 3), np.arange(length - user % 3)) for user in range(users)
    ]


def _walk(start: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    items = 1 + (start + np.arange(length)) % (ITEMS - 1)
    return items, (1 + items % 5).astype(np.int32)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    recipe = dataclasses.replace(TINY, epochs=2)
    first, second = (train(histories(), ITEMS, recipe).state_dict() for _ in range(2))
    other = train(histories(), ITEMS, dataclasses.replace(recipe, seed=1)).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["item_embedding.weight"], other["item_embedding.weight"])


def test_it_learns_what_popularity_cannot() -> None:
    data = histories()
    model = train(data, ITEMS, TINY)
    assert evaluate(model, data, "test").ndcg > 0.9
    assert evaluate_popularity(data, ITEMS).ndcg < 0.7
    assert not model.training


def test_the_best_epoch_is_kept_and_patience_ends_the_training() -> None:
    epochs: list[Epoch] = []
    recipe = dataclasses.replace(TINY, epochs=30, patience=2)
    data = histories()
    model = train(data, ITEMS, recipe, epochs.append)
    best = max(epochs, key=lambda epoch: epoch.validation.ndcg)
    assert [epoch.number for epoch in epochs if epoch.best][-1] == best.number
    assert epochs[-1].number == min(best.number + 2, 30)
    assert evaluate(model, data, "validation") == best.validation


def test_validation_and_test_items_are_not_trained_on_and_long_histories_are_windowed() -> None:
    """A held-out example holds what came before it, as far as the served model's window reaches."""
    model = train(histories(), ITEMS, dataclasses.replace(TINY, epochs=1))
    long = History("long", *_walk(0, 30), np.arange(30))
    (validation,) = held_out(model, [long], "validation")
    (test,) = held_out(model, [long], "test")
    assert (validation.targets[0], test.targets[0]) == (long.items[28], long.items[29])
    assert test.items.tolist() == long.items[16:29].tolist(), "29 tokens: the window starts at 16 (stride 4)"
    assert validation.items.tolist() == long.items[12:28].tolist(), "28 tokens: the window starts at 12"


def test_seen_items_can_be_left_out_of_the_ranking() -> None:
    """On the circle every item but the target's neighbours is seen: hiding what is seen leaves little to rank."""
    data = histories()
    model = train(data, ITEMS, dataclasses.replace(TINY, epochs=1))
    assert evaluate(model, data, "test", hide_seen=True).ndcg >= evaluate(model, data, "test").ndcg


def test_the_result_does_not_depend_on_the_padding() -> None:
    data = histories()
    model = train(data, ITEMS, dataclasses.replace(TINY, epochs=1))
    alone = [evaluate(model, [history], "test").ndcg for history in data]
    assert evaluate(model, data, "test").ndcg == pytest.approx(sum(alone) / len(alone))
