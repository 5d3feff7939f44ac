"""HR@K and NDCG@K of one held-out item a user, ranked among all candidates: the only place that computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

K = 10


@dataclass(frozen=True)
class RankingQuality:
    """Means over users, as fractions. With one relevant item a user, NDCG is 1 / log2(rank + 2), rank from 0."""

    users: int
    hr: float
    ndcg: float
    k: int = K

    def __str__(self) -> str:
        return f"HR@{self.k} {self.hr:.4f}, NDCG@{self.k} {self.ndcg:.4f} ({self.users} users)"


def quality(ranks: Iterable[int | None], k: int = K) -> RankingQuality:
    """Of 0-based ranks, one a user; None = not ranked at all (a miss)."""
    gains = [1.0 / math.log2(rank + 2) if rank is not None and rank < k else 0.0 for rank in ranks]
    if not gains:
        return RankingQuality(0, 0.0, 0.0, k)
    return RankingQuality(len(gains), sum(gain > 0 for gain in gains) / len(gains), sum(gains) / len(gains), k)


def rank_by_score(scores: npt.NDArray[np.floating[Any]], target: int) -> int:
    """0-based rank of `scores[target]`; of equal scores the earlier one is first, as in the server's RANKING."""
    own = scores[target]
    return int((scores > own).sum() + (scores[:target] == own).sum())


def rank_in_list(ranking: Sequence[int] | npt.NDArray[np.int64], item: int) -> int | None:
    """0-based place of `item` in a list that may have been cut at k."""
    places = np.flatnonzero(np.asarray(ranking) == item)
    return int(places[0]) if len(places) else None
