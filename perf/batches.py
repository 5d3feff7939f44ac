"""Histories of different lengths as right-padded batches, for training and in-process evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mtserve_backend.models.contract import Rows, Window
from mtserve_backend.models.dense_attention import DenseAttention
from mtserve_backend.models.hstu import HSTU
from perf.movielens import OOV_ITEM, Actions, Items


@dataclass(frozen=True)
class Example:
    """What a model is given of one user, and what it should have predicted.

    `targets[i]` is the item that follows row i; evaluation has one target, behind the last row.
    """

    items: Items
    actions: Actions
    targets: Items

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Padded:
    """`batch * length` rows, padded on the right."""

    items: torch.Tensor
    actions: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Padded:
        length = max(len(example) for example in examples)
        items = torch.full((len(examples), length), OOV_ITEM, dtype=torch.int64)
        actions = torch.zeros_like(items)
        for row, example in enumerate(examples):
            items[row, : len(example)] = torch.from_numpy(example.items)
            actions[row, : len(example)] = torch.from_numpy(example.actions)
        return cls(items, actions, torch.tensor([len(example) for example in examples]))

    @property
    def real(self) -> torch.Tensor:
        """bool `[batch * length]`: which rows are no padding."""
        return (torch.arange(self.items.shape[1]) < self.lengths.unsqueeze(1)).flatten()

    @property
    def rows(self) -> Rows:
        """Positions start at 0 in every history. No segments: `DenseAttention` needs none."""
        positions = torch.arange(self.items.shape[1]).expand_as(self.items)
        return Rows(self.items.flatten(), self.actions.flatten(), positions.flatten(), ())

    def attention(self, model: HSTU) -> DenseAttention:
        return DenseAttention(self.items.shape[0], self.items.shape[1], model.config.heads)


def windowed(items: Items, actions: Actions, window: Window) -> tuple[Items, Actions]:
    """The part of a history that a serving model encodes."""
    start = window.start(len(items))
    return items[start:], actions[start:]


def by_length(examples: Sequence[Example], tokens: int) -> Iterator[list[Example]]:
    """Batches of about `tokens` padded tokens, neighbours in length together, longest last."""
    batch: list[Example] = []
    for example in sorted(examples, key=len):
        if batch and (len(batch) + 1) * len(example) > tokens:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
