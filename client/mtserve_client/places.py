"""The places that calls can go to (models on servers), in each user's order of preference, and which of them are down.

A place is down after STRIKES failures in a row. Then it is asked again by one call at a time, ever less often, until
it answers: what it is asked is an ordinary call, which goes on to the next place if there is still no answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtserve_client.placement import digest, preference
from mtserve_client.users import UserId

log = logging.getLogger(__name__)

STRIKES = 3
# Seconds from one call that asks a place that is down to the next; doubled each time up to the longest.
FIRST_S = 0.5
LONGEST_S = 8.0


@dataclass
class _Health:
    strikes: int = 0
    asks: int = 0  # while down
    not_before: float = float("-inf")  # the next call that may ask, while down

    @property
    def down(self) -> bool:
        return self.strikes >= STRIKES


class Places:
    """Every model on every server: place i is model i % m of server i // m, with m models. Thread-safe."""

    def __init__(
        self, servers: Sequence[str], models: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """The names that are hashed; none twice."""
        self._servers = tuple(servers)
        self._models = tuple(models)
        self._clock = clock
        self._lock = threading.Lock()
        self._health = [_Health() for _ in range(len(self._servers) * len(self._models))]

    def __len__(self) -> int:
        return len(self._health)

    def name(self, place: int) -> str:
        """For messages."""
        server, model = divmod(place, len(self._models))
        return f"{self._models[model]} on {self._servers[server]}"

    def order(self, user: UserId) -> list[int]:
        """All places, the user's own first: the user's server, there the user's model, then the other models, and so
        on with the next server.
        """
        if len(self._health) == 1:
            return [0]
        of_user = digest(user)
        models = preference(self._models, of_user)
        return [server * len(self._models) + model for server in preference(self._servers, of_user) for model in models]

    def choose(self, order: Sequence[int], tried: set[int]) -> int | None:
        """The first place in `order` that is not down, without those tried; where all are down, the first. None: all
        have been tried.
        """
        left = [place for place in order if place not in tried]
        with self._lock:
            return next((place for place in left if self._may_be_asked(self._health[place])), left[0] if left else None)

    def answered(self, place: int) -> None:
        """The place did what it is there for, be it a refusal."""
        health = self._health[place]
        if not health.strikes:
            return
        with self._lock:
            back, self._health[place] = health.down, _Health()
        if back:
            log.info("%s answers again", self.name(place))

    def failed(self, place: int) -> None:
        """No answer, or a fault."""
        health = self._health[place]
        with self._lock:
            if health.down:
                return
            health.strikes += 1
            fell = health.down
            health.not_before = self._clock() + FIRST_S
        if fell and len(self) > 1:
            log.warning("%s is down: its users go to other places until it answers again", self.name(place))

    def _may_be_asked(self, health: _Health) -> bool:
        if not health.down:
            return True
        now = self._clock()
        if now < health.not_before:
            return False
        health.asks += 1
        health.not_before = now + min(LONGEST_S, FIRST_S * 2.0**health.asks)
        return True
