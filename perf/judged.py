"""The demo's visits to several modes side by side: what each answer cost, and how good it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perf.metrics import K, rank_in_list
from perf.traffic.dealer import Dealer
from perf.traffic.loops import interleaved
from perf.traffic.target import Answer, Target, checked
from perf.visits import Visit

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Judged:
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


def judge(
    targets: Mapping[str, Target],
    visits: Iterable[Visit],
    records: list[Judged],
    on_visit: Callable[[], None] = lambda: None,
) -> None:
    """Send every visit to every mode, one request at a time, and append to `records` once all have answered."""
    modes = list(targets)
    answers: dict[str, tuple[Answer, float]] = {}
    for turn in interleaved(targets, Dealer(visits), top_k=K):
        served = checked(turn.served)
        answers[turn.name] = served.answers[0], served.latency_s
        if len(answers) == len(modes):
            expected = answers[modes[0]][0].scores
            records.extend(_judged(mode, turn.batch[0], *answers[mode], expected) for mode in modes)
            answers = {}
            on_visit()


def _judged(mode: str, visit: Visit, answer: Answer, seconds: float, expected: Scores) -> Judged:
    return Judged(
        mode=mode,
        user=visit.user,
        length=len(visit.items),
        new=visit.new,
        seconds=seconds,
        device=answer.device,
        host=answer.host,
        recomputed=answer.recomputed,
        difference=_difference(expected, answer.scores),
        judged=visit.target is not None,
        rank=None if visit.target is None else rank_in_list(answer.ranking, visit.target),
        ranking=tuple(answer.ranking.tolist()),
    )


def _difference(expected: Scores, got: Scores) -> float:
    largest = float(np.abs(expected).max(initial=0.0))
    return float(np.abs(expected - got).max(initial=0.0)) / largest if largest else 0.0
