"""The blocking client."""

from __future__ import annotations

import time
from types import TracebackType

from mtserve_client.base import BaseClient, CandidatesLike
from mtserve_client.connect import connect
from mtserve_client.errors import MtserveError
from mtserve_client.events import EventsLike
from mtserve_client.exchange import Exchange, Pause
from mtserve_client.protocol import CacheInfo, Ranking
from mtserve_client.users import UserId


class RankingClient(BaseClient):
    """Ranks candidates for users; blocking, and usable by several threads at once. Options: see BaseClient.

    with RankingClient("localhost:8001") as client:
        ranking = client.rank(5, history=Events(items, actions), candidates=[10, 11, 12])
    """

    def _connect(self) -> None:
        self._transports = [connect(target) for target in self._targets]

    def rank(
        self,
        user_id: UserId,
        history: EventsLike | None = None,
        candidates: CandidatesLike | None = None,
        top_k: int | None = None,
        *,
        new_events: EventsLike | None = None,
        timeout_s: float | None = None,
    ) -> Ranking:
        """Score candidates for a user. Exactly one of `history` and `new_events` is given.

        Args:
            user_id: an int from 1 to 2**64 - 1, or a str of 1 to 128 bytes of UTF-8; 5 and "5" are two users.
            history: the user's whole history, oldest first. Only what the server lacks is sent.
            new_events: the events since the last call for this user that returned; may be none. With several
                calls for one user at the same time "the last" is a matter of luck: pass `history` there.
            candidates: item IDs, `[m]`; m = 0 only prepares the user's state.
            top_k: how many candidates `ranking` holds; None: all.
            timeout_s: how long the call may take; None: the client's `timeout_s`.

        Returns:
            Ranking: scores float32 `[m, tasks]`, ranking int64 `[k]`, and where the history was found.

        Raises:
            InvalidRequest: the arguments are wrong, or the server says so.
            HistoryNeeded: `new_events` was given, and nothing, or not enough, is remembered: pass `history`.
            ModelNotFound: the server has no such model.
            ServerUnavailable, DeadlineExceeded, ServerFault: no answer, after sending again. What is
                remembered is as before the call, so the same call can be made again.
        """
        return self._drive(self._exchange(user_id, history, new_events, candidates, top_k, timeout_s))

    def warm(self, user_id: UserId, history: EventsLike, *, timeout_s: float | None = None) -> CacheInfo:
        """Prepare a user's state and score nothing; the next `rank` finds it. Raises as `rank` does."""
        return self._drive(self._exchange(user_id, history, None, [], None, timeout_s)).cache

    def forget(self, user_id: UserId, *, timeout_s: float | None = None) -> None:
        """Have every server remove all that it keeps of a user, on every tier, and forget it here as well.

        When this returns it is done. Requests for the user that other calls or clients still have under way bring the
        user back. Raises ServerUnavailable, also while a copy of the state is under way; ServerFault, DeadlineExceeded.
        """
        self._drive(self._erase(user_id, timeout_s))

    def close(self) -> None:
        """Close the connections. Calls made later raise ClientClosed."""
        self._closed = True
        for transport in self._transports:
            transport.close()

    def __enter__(self) -> RankingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, exchange: Exchange) -> Ranking:
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = exchange.send(None)
                    continue
                try:
                    ranking = self._transports[step.place].infer(step.call, step.timeout_s)
                except MtserveError as error:
                    step = exchange.throw(error)
                else:
                    step = exchange.send(ranking)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            exchange.close()
