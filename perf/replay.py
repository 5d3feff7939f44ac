"""The same visits to several models side by side, and what each answer was and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mtserve_client import Events, Ranking, RankingClient

from perf.metrics import K, rank_in_list
from perf.visits import Visit

Scores = npt.NDArray[np.float32]

MODES = ("recompute", "device", "hierarchical")


@dataclass(frozen=True)
class Record:
    """One answered request. `difference` is to the first mode's scores, relative to the largest of them.

    `rank`: 0-based place of the visit's target, None where it is not among the first ten or there is no target.
    """

    mode: str
    user: int
    length: int
    new: int
    seconds: float
    device: int
    host: int
    recomputed: int
    difference: float
    judged: bool
    rank: int | None
    ranking: tuple[int, ...]

    @property
    def found(self) -> str:
        """Where most of the known history was found."""
        known = self.length - self.new
        if not known:
            return "new user"
        places = {"on the device": self.device, "in host memory": self.host, "nowhere": self.recomputed}
        return max(places, key=lambda place: places[place])


def replay(
    clients: Mapping[str, RankingClient],
    visits: Iterable[Visit],
    records: list[Record],
    on_visit: Callable[[], None] = lambda: None,
) -> None:
    """Send every visit to every mode, one request at a time, and append to `records`, mode by mode.

    The modes take turns in being first, so that none has the warmer processor caches.
    """
    modes = list(clients)
    for number, visit in enumerate(visits):
        turn = number % len(modes)
        answers = {mode: _timed(clients[mode], visit) for mode in modes[turn:] + modes[:turn]}
        first = answers[modes[0]][0].scores
        for mode in modes:
            ranking, seconds = answers[mode]
            records.append(_record(mode, visit, ranking, seconds, _difference(first, ranking.scores)))
        on_visit()


def _timed(client: RankingClient, visit: Visit) -> tuple[Ranking, float]:
    history = Events(visit.items, visit.actions)
    started = time.perf_counter()
    ranking = client.rank(visit.user, history=history, candidates=visit.candidates, top_k=K)
    return ranking, time.perf_counter() - started


def _record(mode: str, visit: Visit, answer: Ranking, seconds: float, difference: float) -> Record:
    cache = answer.cache
    return Record(
        mode=mode,
        user=visit.user,
        length=len(visit.items),
        new=visit.new,
        seconds=seconds,
        device=cache.device,
        host=cache.host,
        recomputed=cache.recomputed,
        difference=difference,
        judged=visit.target is not None,
        rank=None if visit.target is None else rank_in_list(answer.ranking, visit.target),
        ranking=tuple(answer.ranking.tolist()),
    )


def _difference(expected: Scores, got: Scores) -> float:
    largest = float(np.abs(expected).max(initial=0.0))
    return float(np.abs(expected - got).max(initial=0.0)) / largest if largest else 0.0
