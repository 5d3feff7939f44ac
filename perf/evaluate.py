"""HR@10 and NDCG@10 of a next-item model in this process: leave-last-out, ranked among all items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import torch

from mtserve_backend.models.hstu import HSTU
from perf.batches import Example, Padded, by_length, windowed
from perf.metrics import RankingQuality, quality, rank_by_score
from perf.movielens import OOV_ITEM, History, leave_last_out

Part = Literal["validation", "test"]
TOKENS_PER_BATCH = 8192


def held_out(model: HSTU, histories: Iterable[History], part: Part) -> Iterator[Example]:
    """All a server would know before the held-out event, and the held-out item."""
    for history in histories:
        split = leave_last_out(history)
        if split is not None:
            place = split.validation if part == "validation" else split.test
            items, actions = windowed(history.items[:place], history.actions[:place], model.window)
            yield Example(items, actions, history.items[place : place + 1])


@torch.inference_mode()
def evaluate(model: HSTU, histories: Iterable[History], part: Part, *, hide_seen: bool = False) -> RankingQuality:
    """Candidates are all items but the unknown one; `hide_seen` leaves out what the user had already."""
    training = model.training
    model.eval()
    candidates = torch.arange(model.config.items)
    ranks: list[int | None] = []
    for batch in by_length(list(held_out(model, histories, part)), TOKENS_PER_BATCH):
        padded = Padded.of(batch)
        outputs = model.encode(model.embed(padded.rows), padded.attention(model))
        last = outputs.view(len(batch), -1, outputs.shape[-1])[torch.arange(len(batch)), padded.lengths - 1]
        for example, output in zip(batch, last, strict=True):
            scores = model.score(output.unsqueeze(0), candidates)[:, 0].numpy()
            target = int(example.targets[0])
            hidden = np.append(example.items[example.items != target], OOV_ITEM) if hide_seen else OOV_ITEM
            scores[hidden] = -np.inf
            ranks.append(rank_by_score(scores, target))
    model.train(training)
    return quality(ranks)


def evaluate_popularity(histories: Iterable[History], items: int) -> RankingQuality:
    """What a ranking by popularity, the same for everybody, reaches on the test items."""
    splits = [(history, split) for history in histories if (split := leave_last_out(history)) is not None]
    popularity = np.zeros(items)
    for history, split in splits:
        np.add.at(popularity, history.items[split.train], 1.0)
    popularity[OOV_ITEM] = -np.inf
    return quality(rank_by_score(popularity, int(history.items[split.test])) for history, split in splits)
