"""What the demo measures: real MovieLens users on the committed model, made-up users on the paper's model size."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from perf.judged import Judged, judge
from perf.lab.presets import PARADIGMS
from perf.movielens import MovieLens
from perf.paper_model import CONFIG, write_paper_model
from perf.traffic.server import ServerTarget, targets
from perf.traffic.target import PATIENCE_S, Target
from perf.visits import SyntheticUsers, Visit, movielens_visits

NEW_EVENTS = 32
CANDIDATES = 32


@dataclass
class Measured:
    """Filled as the demo goes, so that an interrupted one can tell what it has."""

    movielens: list[Judged] = field(default_factory=list)
    paper: list[Judged] = field(default_factory=list)
    sweep: list[Judged] = field(default_factory=list)


@dataclass(frozen=True)
class MovieLensPart:
    """All users' visits in the order in which they happened.

    MovieLens users come in one burst and are gone: most of their visits would find even a small cache's content, so
    the device holds a tenth of all tokens, that the tiers may differ.
    """

    data: MovieLens
    weights: Path
    users: int | None = None
    device_share: float = 0.1

    @property
    def visits(self) -> list[Visit]:
        return movielens_visits(self.data.histories[: self.users], self.data.items)

    def parameters(self, visits: Iterable[Visit]) -> dict[str, str]:
        tokens = sum(visit.new for visit in visits)
        return {
            "page_tokens": "32",
            "chunk_tokens": "64",
            "device_cache": f"{max(2048, int(tokens * self.device_share))} tokens",
            "onload_buffer": "4096 tokens",
            # Chunks are whole: a user's last one is half empty on average.
            "host_cache": f"{tokens + 64 * len(self.data.histories)} tokens",
        }

    def run(self, records: list[Judged]) -> None:
        visits = self.visits
        with side_by_side(self.weights, self.parameters(visits)) as modes:
            _replay(modes, visits, records, "MovieLens visits")


@dataclass(frozen=True)
class PaperPart:
    """Users with long histories on the paper's model, then a sweep over lengths. The device holds half of them."""

    seed: int
    users: int = 5
    history: int = 4000
    visits: int = 12
    lengths: tuple[int, ...] = (600, 1200, 2400, 3600, 4800, 6000)

    @property
    def parameters(self) -> dict[str, str]:
        """Between two visits of a sweep's user the others fill the device: it finds itself evicted."""
        tokens = self.users * (self.history + 256) + self.visits * NEW_EVENTS
        return {
            "page_tokens": "256",
            "chunk_tokens": "256",
            "device_cache": f"{int(0.5 * tokens)} tokens",
            "onload_buffer": f"{max(self.history, *self.lengths) + 1024} tokens",
            "host_cache": f"{tokens + sum(self.lengths) + 512 * (self.users + len(self.lengths))} tokens",
        }

    def run(self, measured: Measured) -> None:
        people = SyntheticUsers(CONFIG.items, CONFIG.actions, self.seed)
        users = range(1, self.users + 1)
        first = [people.visit(user, self.history, 0) for user in users]
        returning = [people.visit(user, NEW_EVENTS, CANDIDATES) for user in people.order(users, self.visits)]
        swept = {1000 + length: length for length in self.lengths}
        sweep_first = [people.visit(user, length, 0) for user, length in swept.items()]
        # Twice in a row: the first time back from eviction, the second time still there.
        sweep = [people.visit(user, NEW_EVENTS, CANDIDATES) for user in swept for _ in range(2)]
        with tempfile.TemporaryDirectory(prefix="mtserve-paper-") as folder:
            weights = write_paper_model(Path(folder), self.seed)
            with side_by_side(weights, self.parameters) as modes:
                _replay(modes, first, [], "users' first visits")
                _replay(modes, returning, measured.paper, "returning users")
                _replay(modes, sweep_first, [], "sweep: first visits")
                _replay(modes, sweep, measured.sweep, "sweep: returning")


def side_by_side(weights: Path, parameters: Mapping[str, str]) -> AbstractContextManager[dict[str, ServerTarget]]:
    """One server with the same model in each mode. The knobs besides `cache_mode` are the same for all three."""
    shared = {**parameters, "request_timeout_s": str(PATIENCE_S)}
    return targets(weights, {mode: {**shared, "cache_mode": mode} for mode in PARADIGMS}, bare=True)


def _replay(modes: Mapping[str, Target], visits: list[Visit], records: list[Judged], label: str) -> None:
    with tqdm(total=len(visits) * len(PARADIGMS), unit="request", desc=f"{label:>20}", smoothing=0.05) as bar:
        judge(modes, visits, records, lambda: bar.update(len(PARADIGMS)))
