"""Whatever its contract allows, the cache manager never lets a page or a chunk serve other tokens.

Two explorers of the same world: hypothesis, which shrinks what it finds, and random walks, whose steps are weighted so
that states are saved, evicted, loaded back and cut while copies are under way thousands of times.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mtserve_backend.cache.records import User
from tests.cache.world import USERS, Request, Sizes, World

which = st.integers(0, 11)
sometimes = st.sampled_from([False, False, False, False, False, True])

PAGE_TOKENS = [2, 3, 1, 4]
CHUNK_PAGES = [1, 2, 2, 3]
DEVICE_PAGES = [12, 16, 8, 10, 14, 30, 6, 1]
ONLOAD_PAGES = [3, 2, 8, 1, 0]
HOST_CHUNKS = [12, 30, 20, 8, 5, 1]
QUOTA_CHUNKS = [100, 100, 3, 1]
WINDOWS = [*[(1000, 1)] * 8, (16, 4), (7, 7), (5, 1)]
LOG_USERS = [*[1000] * 8, 3, 1]
CUTS = [*[0] * 8, 1, 2, 5]
FLIPS = [*[None] * 10, 0, 1, 6]
SENT = ["whole", "whole", "delta", "delta", "overlap", "overlap", "gap"]


class ManagerMachine(RuleBasedStateMachine):
    """Hypothesis' hand on the world."""

    @initialize(
        sizes=st.builds(
            Sizes,
            page_tokens=st.sampled_from(PAGE_TOKENS),
            chunk_pages=st.sampled_from(CHUNK_PAGES),
            device_pages=st.sampled_from(DEVICE_PAGES),
            onload_pages=st.sampled_from(ONLOAD_PAGES),
            host_chunks=st.sampled_from(HOST_CHUNKS),
            quota_chunks=st.sampled_from(QUOTA_CHUNKS),
            window=st.sampled_from(WINDOWS),
            log_users=st.sampled_from(LOG_USERS),
        )
    )
    def build(self, sizes: Sizes) -> None:
        self.world = World(sizes)

    @rule(
        request=st.builds(
            Request,
            user=st.sampled_from(USERS),
            cut=st.sampled_from(CUTS),
            flip=st.sampled_from(FLIPS),
            fresh=st.integers(0, 9),
            sent=st.sampled_from(SENT),
            overlap=which,
            digest=st.booleans(),
        ),
        at_once=st.booleans(),
    )
    def visit(self, request: Request, at_once: bool) -> None:
        self.world.visit(request) if at_once else self.world.look_up(request)

    @rule(which=which, uncached=sometimes, give_up=st.booleans())
    def prepare(self, which: int, uncached: bool, give_up: bool) -> None:
        self.world.prepare(which, uncached, give_up)

    @rule()
    def make_room(self) -> None:
        self.world.make_room()

    @rule(which=which, fails=sometimes, written=st.integers(0, 5))
    def compute(self, which: int, fails: bool, written: int) -> None:
        self.world.compute(which, fails, written)

    @rule(which=which, load=st.booleans())
    def give_up(self, which: int, load: bool) -> None:
        self.world.give_up_a_load(which) if load else self.world.forgo(which)

    @rule(user=st.sampled_from(USERS))
    def forget(self, user: User) -> None:
        self.world.forget(user)

    @rule(tails=st.booleans())
    def plan(self, tails: bool) -> None:
        self.world.plan_offloads(tails)

    @rule(moves=st.integers(0, 40), quarters=st.integers(0, 4))
    def time_passes(self, moves: int, quarters: int) -> None:
        self.world.upkeep(moves)
        self.world.crowd_out(quarters)

    @rule(stream=st.integers(0, 2), fails=sometimes, which=which, deliver=st.booleans())
    def move(self, stream: int, fails: bool, which: int, deliver: bool) -> None:
        self.world.move(stream, fails)
        if deliver:
            self.world.deliver(which)

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


def explore(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ManagerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def walk(seed: int, steps: int) -> Counter[str]:
    """One world for a while. What it went through is counted, so that a walk that goes nowhere is noticed."""
    rng = Random(seed)
    every_size = (
        PAGE_TOKENS, CHUNK_PAGES, DEVICE_PAGES, ONLOAD_PAGES, HOST_CHUNKS, QUOTA_CHUNKS, WINDOWS, LOG_USERS
    )  # fmt: skip
    world = World(Sizes(*(rng.choice(choices) for choices in every_size)))

    def request() -> Request:
        fresh, overlap = rng.randrange(7), rng.randrange(12)
        user, cut, flip, sent = rng.choice(USERS), rng.choice(CUTS), rng.choice(FLIPS), rng.choice(SENT)
        return Request(user, cut, flip, fresh, sent, overlap, digest=rng.random() < 0.5)

    def rarely() -> bool:
        return rng.random() < 0.1

    actions = {
        lambda: world.visit(request()): 40,
        lambda: world.look_up(request()): 8,
        lambda: world.prepare(rng.randrange(12), rarely(), rng.random() < 0.5): 15,
        lambda: world.make_room(): 6,
        lambda: world.compute(rng.randrange(12), rarely(), rng.randrange(5)): 20,
        lambda: world.forgo(rng.randrange(12)): 1,
        lambda: world.give_up_a_load(rng.randrange(12)): 1,
        lambda: world.plan_offloads(): 12,
        lambda: world.plan_offloads(tails=True): 6,
        lambda: world.forget(rng.choice(USERS)): 1,
        lambda: world.move(rng.randrange(3), rarely()): 25,
        lambda: world.deliver(rng.randrange(12)): 20,
        lambda: world.upkeep(40): 8,
        lambda: world.crowd_out(rng.choice((1, 2, 4, 4, 4))): 12,
    }
    # Each walk has habits of its own: one hardly moves bytes, another hardly ever looks up without preparing at once.
    habits = [weight * rng.choice((0.3, 1, 1, 3)) for weight in actions.values()]
    for _ in range(steps):
        rng.choices(list(actions), habits)[0]()
        world.check()
    world.end()
    return world.seen


def walks(seeds: range, steps: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += walk(seed, steps)
        except Exception as error:
            raise AssertionError(f"walk({seed}, {steps}) came to grief") from error
    return seen


def test_hypothesis_finds_no_page_or_chunk_that_serves_other_tokens() -> None:
    explore(examples=150, steps=50)


def test_no_random_walk_finds_one() -> None:
    seen = walks(range(500), steps=150)
    rarest = min(seen, key=lambda what: seen[what])
    assert "delivered to a leased user" in seen
    assert seen[rarest] >= 30, f"hardly any {rarest}: {dict(seen)}"


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_hypothesis_at_length() -> None:
    explore(examples=10_000, steps=80)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_random_walks_at_length() -> None:
    walks(range(1_000_000, 1_010_000), steps=200)
