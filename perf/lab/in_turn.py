"""The same batches to several models of one server, in turn: what each took, and where it found the histories."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean

from tqdm import tqdm

from perf.lab.population import Population, trace_lengths
from perf.lab.presets import Preset
from perf.lab.servers import Served, knobs, serving
from perf.stats import ratio


@dataclass
class Taken:
    """By one model: seconds of each batch, tokens found on device and host, recomputed and new, seconds by step."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    steps: dict[str, float] = field(default_factory=dict)
    waited_s: float = 0.0

    @property
    def mean_ms(self) -> float:
        return 1e3 * mean(self.seconds)

    @property
    def device_hits(self) -> float:
        """Percent of all history tokens, new ones included."""
        return 100 * ratio(self.tokens[0], sum(self.tokens))

    @property
    def total_hits(self) -> float:
        return 100 * ratio(self.tokens[0] + self.tokens[1], sum(self.tokens))

    @property
    def batches(self) -> int:
        return len(self.seconds)

    def step_ms(self, name: str) -> float:
        """Of one batch."""
        return 1e3 * self.steps.get(name, 0.0) / max(1, self.batches)


class InTurn:
    """A population that has visited once, and the models that know it."""

    def __init__(self, people: Population, served: Mapping[str, Served]) -> None:
        self.people, self._served = people, served

    def put(self, size: int, count: int) -> dict[str, Taken]:
        """`count` batches of `size`; the models take turns in being first."""
        names = list(self._served)
        before = {name: (own.step_seconds(), own.waited_seconds()) for name, own in self._served.items()}
        taken = {name: Taken() for name in names}
        for number, batch in enumerate(tqdm(self.people.batches(count, size), desc=f"batch {size}", file=sys.stderr)):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                seconds, answers = self._served[name].ask_together(batch)
                taken[name].seconds.append(seconds)
                for answer in answers:
                    taken[name].tokens = [a + b for a, b in zip(taken[name].tokens, answer.tokens, strict=True)]
        for name, own in self._served.items():
            steps, waited = before[name]
            taken[name].steps = {step: value - steps.get(step, 0.0) for step, value in own.step_seconds().items()}
            taken[name].waited_s = own.waited_seconds() - waited
        return taken


@contextmanager
def trace_in_turn(preset: Preset, models: Mapping[str, Mapping[str, str]], seed: int) -> Iterator[InTurn]:
    """A server with these models (their knobs beside the preset's), and users as the KuaiRand-like trace has them.

    Every model but those that recompute has seen all of them once.
    """
    lengths = trace_lengths(preset, preset.users, seed)
    people = Population(preset, lengths, preset.arriving, preset.candidates, seed)
    grown = preset.arriving * preset.visits * 3
    largest_chunk = max([preset.chunk_tokens, *(int(own.get("chunk_tokens", 0)) for own in models.values())])
    common = knobs(
        preset,
        device_tokens=int(preset.device_share * people.tokens),
        host_tokens=people.tokens + len(lengths) * (grown + largest_chunk),
        longest=sum(sorted(lengths)[-max(preset.batches) :]) + grown,
    )
    with serving(preset, {name: {**common, **own} for name, own in models.items()}) as served:
        for visit in tqdm(people.first, desc="first visits", file=sys.stderr):
            for name, own in models.items():
                if own.get("cache_mode") != "recompute":
                    served[name].ask(visit)
        yield InTurn(people, served)
