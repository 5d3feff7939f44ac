"""Next-item training of a small HSTU: full softmax at every position, AdamW, early stopping on validation NDCG@10."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.contract import Rows
from mtserve_backend.models.hstu import HSTU, HSTULayer
from perf.batches import Example, Padded, by_length, windowed
from perf.evaluate import evaluate
from perf.metrics import RankingQuality
from perf.movielens import ACTIONS, OOV_ITEM, History, leave_last_out


@dataclass(frozen=True)
class Recipe:
    """Everything the trained weights depend on, besides the data and the versions."""

    seed: int = 0
    hidden: int = 64
    layers: int = 2
    heads: int = 2
    max_history: int = 1024
    attention_n: int = 64
    norm_eps: float = 1e-6
    dropout: float = 0.3
    embedding_dropout: float = 0.4
    unknown_rate: float = 0.01
    learning_rate: float = 5e-3
    weight_decay: float = 0.05
    tokens_per_batch: int = 2048
    epochs: int = 40
    patience: int = 15

    def config(self, items: int) -> HSTUConfig:
        return HSTUConfig(
            layers=self.layers,
            heads=self.heads,
            head_dim=self.hidden // self.heads,
            hidden=self.hidden,
            items=items,
            actions=ACTIONS,
            max_history=self.max_history,
            attention_n=self.attention_n,
            norm_eps=self.norm_eps,
            scoring="next_item",
            oov_item=OOV_ITEM,
        )


@dataclass(frozen=True)
class Epoch:
    number: int
    loss: float
    validation: RankingQuality
    best: bool


def train(
    histories: Sequence[History], items: int, recipe: Recipe, on_epoch: Callable[[Epoch], None] = lambda epoch: None
) -> HSTU:
    """The model of the epoch with the best validation NDCG@10. The same inputs give the same weights, bit for bit."""
    torch.manual_seed(recipe.seed)
    model = HSTU(recipe.config(items)).train()
    add_dropout(model, recipe.dropout)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    shuffle = np.random.default_rng(recipe.seed)
    examples = [example for history in histories if (example := _training_example(model, history)) is not None]
    best_ndcg, best_epoch, best_state = -1.0, 0, {}
    for number in range(1, recipe.epochs + 1):
        batches = list(by_length([examples[i] for i in shuffle.permutation(len(examples))], recipe.tokens_per_batch))
        losses = [_step(model, optimizer, batches[i], recipe) for i in shuffle.permutation(len(batches))]
        schedule.step()
        found = evaluate(model, histories, "validation")
        best = found.ndcg > best_ndcg
        if best:
            best_ndcg, best_epoch = found.ndcg, number
            best_state = {key: value.clone() for key, value in model.state_dict().items()}
        on_epoch(Epoch(number, sum(losses) / len(losses), found, best))
        if number - best_epoch >= recipe.patience:
            break
    model.load_state_dict(best_state)
    return model.eval()


def add_dropout(model: HSTU, rate: float) -> None:
    """Before every output projection, where the HSTU paper's code has it; a hook, so the served model knows nothing."""
    for layer in model.modules():
        if isinstance(layer, HSTULayer):
            layer.output_norm.register_forward_hook(lambda norm, _, out: F.dropout(out, rate, norm.training))


def _training_example(model: HSTU, history: History) -> Example | None:
    split = leave_last_out(history)
    if split is None or split.train.stop < 2:
        return None
    items, actions = windowed(history.items[split.train], history.actions[split.train], model.window)
    return Example(items[:-1], actions[:-1], items[1:])


def _step(model: HSTU, optimizer: torch.optim.Optimizer, batch: Sequence[Example], recipe: Recipe) -> float:
    padded = Padded.of(batch)
    rows, real = padded.rows, padded.real
    # A few known items are shown as the unknown one, so that its embedding means "some item".
    unknown = torch.rand(len(rows)) < recipe.unknown_rate
    x = model.embed(Rows(rows.items.masked_fill(unknown, OOV_ITEM), rows.actions, rows.positions, ()))
    outputs = model.encode(F.dropout(x, recipe.embedding_dropout), padded.attention(model))[real]
    targets = torch.from_numpy(np.concatenate([example.targets for example in batch]))
    logits = outputs @ model.item_embedding.weight.T
    loss = F.cross_entropy(logits, targets)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())
