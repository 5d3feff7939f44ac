"""The client against a real Triton with the shipped model: gRPC and HTTP, blocking and asyncio."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from typing import Any

import numpy as np
import pytest
from mtserve_client import (
    AsyncRankingClient,
    CacheInfo,
    DeadlineExceeded,
    Events,
    HistoryNeeded,
    InvalidRequest,
    ModelNotFound,
    RankingClient,
)
from mtserve_client.cli import main

pytestmark = pytest.mark.server

CANDIDATES = [50, 100, 181, 258, 300]
# Users that no other test has, nor another run against the same server.
_IDS = itertools.count(int.from_bytes(os.urandom(6), "big") << 12)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, server: Any) -> str:
    return str(server.grpc_url if request.param == "grpc" else server.http_url)


@pytest.fixture
def user() -> int:
    return next(_IDS)


def history(length: int, first: int = 1) -> Events:
    return Events.of([((first + 7 * i) % 1600 + 1, 1 + i % 5) for i in range(length)])


def test_rank_scores_every_candidate_and_orders_them(url: str, user: int) -> None:
    with RankingClient(url) as client:
        answer = client.rank(user, history(40), candidates=CANDIDATES, top_k=3)
    assert answer.scores.dtype == np.float32
    assert answer.scores.shape[0] == len(CANDIDATES)
    assert np.isfinite(answer.scores).all()
    best = sorted(range(len(CANDIDATES)), key=lambda i: -answer.scores[i, 0])[:3]
    assert answer.ranking.tolist() == [CANDIDATES[i] for i in best]
    assert answer.cache == CacheInfo(device=0, host=0, recomputed=0, new=40, history_length=40)


def test_a_delta_gives_the_scores_of_the_whole_history(url: str, user: int) -> None:
    whole = history(80)
    with RankingClient(url) as client, RankingClient(url) as fresh:
        client.warm(user, whole[:70])
        by_history = client.rank(user, whole[:75], candidates=CANDIDATES)
        by_events = client.rank(user, new_events=whole[75:], candidates=CANDIDATES)
        recomputed = fresh.rank(next(_IDS), whole, candidates=CANDIDATES)
    assert (by_history.cache.new, by_history.cache.history_length) == (5, 75)
    assert (by_events.cache.new, by_events.cache.history_length) == (5, 80)
    np.testing.assert_allclose(by_events.scores, recomputed.scores, rtol=1e-3, atol=1e-3)


def test_a_history_that_another_client_cut_is_sent_again(url: str, user: int) -> None:
    whole = history(60)
    with RankingClient(url) as client, RankingClient(url) as other:
        client.warm(user, whole[:50])
        other.warm(user, whole[:5])
        answer = client.rank(user, new_events=whole[50:], candidates=CANDIDATES)
    assert answer.cache.history_length == 60
    assert answer.cache.new == 55


def test_a_history_that_another_client_replaced_is_sent_again(url: str, user: int) -> None:
    whole = history(60)
    with RankingClient(url) as client, RankingClient(url) as other:
        client.warm(user, whole[:50])
        other.warm(user, history(70, first=900))
        answer = client.rank(user, new_events=whole[50:], candidates=CANDIDATES)
        expected = other.rank(next(_IDS), whole, candidates=CANDIDATES)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=1e-3, atol=1e-3)


def test_a_history_in_which_another_client_changed_one_early_event_is_sent_again(url: str, user: int) -> None:
    """As a server does that a load balancer returns to: its history is as long, and its end is the same."""
    whole = history(60)
    with RankingClient(url) as client, RankingClient(url) as other:
        client.warm(user, whole[:50])
        other.warm(user, whole[:3] + history(1, first=900) + whole[4:50])
        answer = client.rank(user, new_events=whole[50:], candidates=CANDIDATES)
        expected = other.rank(next(_IDS), whole, candidates=CANDIDATES)
    assert answer.cache.history_length == 60
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=1e-3, atol=1e-3)


def test_without_kept_tokens_the_caller_is_asked_for_the_history(url: str, user: int) -> None:
    whole = history(60)
    with RankingClient(url, remember_tokens=0) as client, RankingClient(url) as other:
        client.warm(user, whole[:50])
        other.warm(user, whole[:5])
        with pytest.raises(HistoryNeeded) as caught:
            client.rank(user, new_events=whole[50:], candidates=CANDIDATES)
        assert caught.value.position <= 5
        assert client.rank(user, whole, candidates=CANDIDATES).cache.history_length == 60


def test_users_of_every_kind_keep_apart(url: str) -> None:
    number = next(_IDS)
    users = [number, str(number), 2**64 - number, "é" * 54 + str(number), " " + str(number)]
    with RankingClient(url) as client, RankingClient(url) as again:
        for length, user in enumerate(users, 20):
            assert client.warm(user, history(length)).new == length
        for length, user in enumerate(users, 20):
            assert again.warm(user, history(length)).new == 0


def test_one_user_is_the_same_over_grpc_and_http(server: Any) -> None:
    for user in (next(_IDS), 2**64 - next(_IDS), f"ü{next(_IDS)}"):
        with RankingClient(server.grpc_url) as grpc, RankingClient(server.http_url) as http:
            grpc.warm(user, history(30))
            assert http.warm(user, history(30)).new == 0


def test_no_candidates(url: str, user: int) -> None:
    with RankingClient(url) as client:
        answer = client.rank(user, history(5), candidates=[])
    assert answer.scores.shape[0] == 0
    assert answer.ranking.shape == (0,)


def test_refusals(url: str, user: int) -> None:
    with RankingClient(url) as client:
        with pytest.raises(InvalidRequest):
            client.rank(user, Events.of([(10**9, 1)]), candidates=CANDIDATES)
        with pytest.raises(InvalidRequest):
            client.rank(user, Events.of([(1, 10**6)]), candidates=CANDIDATES)
        with pytest.raises(InvalidRequest):
            client.rank(user, history(5), candidates=[10**9])
        assert client.rank(user, history(5), candidates=CANDIDATES).cache.new == 5
    with RankingClient(url, model="no_such_model") as client, pytest.raises(ModelNotFound):
        client.warm(user, history(5))


def test_a_deadline_is_kept_and_the_next_call_is_right(url: str, user: int) -> None:
    with RankingClient(url) as client:
        with pytest.raises(DeadlineExceeded):
            client.warm(user, history(200), timeout_s=1e-4)
        assert client.rank(user, history(30), candidates=CANDIDATES).cache.history_length == 30


def test_threads_share_a_client(url: str) -> None:
    users = [next(_IDS) for _ in range(4)]
    wrong: list[object] = []

    def visit(user: int) -> None:
        try:
            for length in range(20, 45):
                answer = client.rank(user, history(length), candidates=CANDIDATES)
                if answer.cache.history_length != length:
                    wrong.append((user, length, answer.cache))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
            wrong.append(error)

    with RankingClient(url) as client:
        # Every user twice: two threads state the same histories at their own pace.
        threads = [threading.Thread(target=visit, args=(user,)) for user in users * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_asyncio(url: str) -> None:
    users = [next(_IDS) for _ in range(8)]

    async def visit(client: AsyncRankingClient, user: int) -> list[CacheInfo]:
        first = await client.warm(user, history(30))
        second = await client.rank(user, new_events=history(2, first=77), candidates=CANDIDATES, top_k=1)
        assert second.ranking.shape == (1,)
        return [first, second.cache]

    async def everybody() -> list[list[CacheInfo]]:
        async with AsyncRankingClient(url) as client:
            with pytest.raises(DeadlineExceeded):
                await client.warm(next(_IDS), history(200), timeout_s=1e-4)
            return await asyncio.gather(*(visit(client, user) for user in users))

    for first, second in asyncio.run(everybody()):
        assert (first.new, first.history_length) == (30, 30)
        assert (second.new, second.history_length) == (2, 32)


def test_command_line(url: str, user: int, capsys: pytest.CaptureFixture[str]) -> None:
    who = ["--url", url, "--user", str(user), "--items", "1,2,3", "--actions", "1,1,1"]
    assert main(["warm", *who]) == 0
    assert "history of 3" in capsys.readouterr().out
    assert main(["rank", *who, "--candidates", "50,100", "--top-k", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["ranking"]) == 1
    assert len(said["scores"]) == 2
    assert said["cache"]["new"] == 0
    assert main(["rank", *who, "--candidates", "1000000000"]) == 4
    assert main(["warm", *who, "--model", "no_such_model"]) == 4
    assert "no_such_model" in capsys.readouterr().err


def test_a_forgotten_user_is_new_again(url: str, user: int) -> None:
    history = Events(items=[50, 181, 172, 174], actions=[5, 4, 5, 3])
    with RankingClient(url) as client:
        first = client.rank(user, history, CANDIDATES)
        assert client.rank(user, history, CANDIDATES).cache.new == 0
        client.forget(user)
        with pytest.raises(HistoryNeeded):
            client.rank(user, new_events=[(258, 4)], candidates=CANDIDATES)
        again = client.rank(user, history, CANDIDATES)
        assert again.cache.new == len(history)
        np.testing.assert_allclose(again.scores, first.scores, rtol=1e-4, atol=1e-5)
        client.forget(next(_IDS))


def test_forgetting_with_asyncio(url: str, user: int) -> None:
    async def run() -> CacheInfo:
        async with AsyncRankingClient(url) as client:
            await client.warm(user, [(50, 5), (181, 4)])
            await client.forget(user)
            return await client.warm(user, [(50, 5), (181, 4)])

    assert asyncio.run(run()).new == 2
