"""The client with several servers: users have a place, keep being served when it dies, and go back when it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest
from mtserve_client import AsyncRankingClient, HistoryNeeded, RankingClient
from mtserve_client.places import LONGEST_S, Places

from tests.server.fleet import CANDIDATES, Load, Member, fleet, history

MODELS = ("hstu_0", "hstu_1")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with fleet(tmp_path_factory.mktemp("repository"), 2, MODELS) as started:
        yield started


def urls(members: list[Member]) -> dict[str, str]:
    return {"a": members[0].server.grpc_url, "b": members[1].server.grpc_url}


def own_place(user: int) -> tuple[int, str]:
    """Which member, and which of its models."""
    server, model = divmod(Places(["a", "b"], MODELS).order(user)[0], 2)
    return server, MODELS[model]


def test_users_are_where_the_rule_says(members: list[Member]) -> None:
    with RankingClient(urls(members), MODELS) as client:
        for user in range(1001, 1009):
            client.warm(user, history(user, 30))
    seen = set()
    for user in range(1001, 1009):
        server, model = own_place(user)
        seen.add((server, model))
        with RankingClient(members[server].server.http_url, model) as direct:
            assert direct.warm(user, history(user, 30)).new == 0
    assert len(seen) > 1


def test_a_server_is_killed_under_load_and_nothing_but_time_is_lost(members: list[Member]) -> None:
    users = list(range(2001, 2013))
    mine = [user for user in users if own_place(user)[0] == 0]
    assert mine
    with RankingClient(urls(members), MODELS) as client:
        with Load(client, users) as load:
            load.wait_for(150)
            members[0].kill()
            load.wait_for(150)
            members[0].start_again()
            load.wait_for(150)
            time.sleep(LONGEST_S)
            load.wait_for(2 * len(users))
        assert load.wrong == []
        user = mine[0]
        whole = history(user, load.lengths[user])
        with RankingClient(members[0].server.grpc_url, own_place(user)[1]) as direct:
            assert direct.warm(user, whole).new == 0, "the user is back where it belongs"
            expected = direct.rank(9_999_999, whole, candidates=CANDIDATES)
        answer = client.rank(user, whole, candidates=CANDIDATES)
        np.testing.assert_allclose(answer.scores, expected.scores, rtol=1e-3, atol=1e-3)


def test_asyncio_fails_over_too(members: list[Member]) -> None:
    user = next(user for user in range(3001, 3100) if own_place(user)[0] == 1)

    async def run() -> None:
        async with (
            AsyncRankingClient(urls(members), MODELS, remember_tokens=0) as forgetful,
            AsyncRankingClient(urls(members), MODELS) as client,
        ):
            await client.warm(user, history(user, 50))
            await forgetful.warm(user, history(user, 50))
            await asyncio.to_thread(members[1].kill)
            answer = await client.rank(user, new_events=[(7, 1)], candidates=CANDIDATES)
            assert answer.cache.history_length == 51
            assert answer.cache.new == 51
            with pytest.raises(HistoryNeeded):
                await forgetful.rank(user, new_events=[(7, 1)], candidates=CANDIDATES)

    asyncio.run(run())
    members[1].start_again()


def test_forgetting_reaches_the_place_a_user_failed_over_to(members: list[Member]) -> None:
    user = next(user for user in range(4001, 4100) if own_place(user)[0] == 0)
    with RankingClient(urls(members), MODELS) as client:
        client.warm(user, history(user, 30))
        for member in members:
            for model in MODELS:
                with RankingClient(member.server.grpc_url, model) as direct:
                    direct.warm(user, history(user, 30))
        client.forget(user)
        for member in members:
            for model in MODELS:
                with RankingClient(member.server.grpc_url, model) as direct:
                    assert direct.warm(user, history(user, 30)).new == 30
