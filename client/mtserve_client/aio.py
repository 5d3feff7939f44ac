"""The asyncio client."""

from __future__ import annotations

import asyncio
from types import TracebackType

from mtserve_client.base import BaseClient, CandidatesLike
from mtserve_client.connect import connect_async
from mtserve_client.errors import MtserveError
from mtserve_client.events import EventsLike
from mtserve_client.exchange import Exchange, Pause
from mtserve_client.protocol import CacheInfo, Ranking
from mtserve_client.users import UserId


class AsyncRankingClient(BaseClient):
    """RankingClient for asyncio: the same methods, awaited, within one event loop. Options: see BaseClient.

        async with AsyncRankingClient("localhost:8001") as client:
            ranking = await client.rank(5, history=Events(items, actions), candidates=[10, 11, 12])

    A cancelled call leaves what is remembered of its user as it was.
    """

    def _connect(self) -> None:
        self._transports = [connect_async(target) for target in self._targets]

    async def rank(
        self,
        user_id: UserId,
        history: EventsLike | None = None,
        candidates: CandidatesLike | None = None,
        top_k: int | None = None,
        *,
        new_events: EventsLike | None = None,
        timeout_s: float | None = None,
    ) -> Ranking:
        """Score candidates for a user: as RankingClient.rank."""
        return await self._drive(self._exchange(user_id, history, new_events, candidates, top_k, timeout_s))

    async def warm(self, user_id: UserId, history: EventsLike, *, timeout_s: float | None = None) -> CacheInfo:
        """Prepare a user's state, scoring nothing: as RankingClient.warm."""
        return (await self._drive(self._exchange(user_id, history, None, [], None, timeout_s))).cache

    async def forget(self, user_id: UserId, *, timeout_s: float | None = None) -> None:
        """Have the server and this client forget a user: as RankingClient.forget."""
        await self._drive(self._erase(user_id, timeout_s))

    async def close(self) -> None:
        """Close the connections. Calls made later raise ClientClosed."""
        self._closed = True
        for transport in self._transports:
            await transport.close()

    async def __aenter__(self) -> AsyncRankingClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _drive(self, exchange: Exchange) -> Ranking:
        try:
            step = next(exchange)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = exchange.send(None)
                    continue
                try:
                    ranking = await self._transports[step.place].infer(step.call, step.timeout_s)
                except MtserveError as error:
                    step = exchange.throw(error)
                else:
                    step = exchange.send(ranking)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            exchange.close()
