"""The replay through the cache manager: every token is accounted for, and the tail flush loses none."""

from __future__ import annotations

from itertools import islice

import pytest

from mtserve_backend.cache.records import Geometry
from perf.traces.generator import requests
from perf.traces.request import Request
from perf.traces.shapes import Lognormal, Shape
from perf.traffic.manager import ManagerReplay, ReplayOptions

SHAPE = Shape(users=30, longest=2_000, last_length=Lognormal(900.0, 0.31), days=3.0)
GEOMETRY = Geometry(page_tokens=8, chunk_tokens=64, device_pages=1_500, onload_pages=200, host_chunks=600)


@pytest.fixture(scope="module")
def trace() -> list[Request]:
    return list(requests(SHAPE, seed=3))


def replay(trace: list[Request], **options: int | bool) -> ManagerReplay:
    run = ManagerReplay(GEOMETRY, ReplayOptions(**options), SHAPE.longest)  # type: ignore[arg-type]
    run.run(trace)
    return run


@pytest.mark.parametrize("delay", [0, 20])
@pytest.mark.parametrize("flush", [True, False])
def test_every_token_of_every_history_is_accounted_for(trace: list[Request], delay: int, flush: bool) -> None:
    run = replay(trace, transfer_delay=delay, tail_flush=flush)
    counters = run.manager.counters
    assert counters.requests == len(trace) == run.served
    total = sum(request.history_length for request in trace)
    assert counters.found_device + counters.found_host + counters.recomputed + counters.new == total
    assert counters.new == sum(request.new for request in trace)
    assert counters.device_evictions > 100
    run.manager.check()


def test_the_flush_saves_what_evictions_lose(trace: list[Request]) -> None:
    with_flush, without = (replay(trace, tail_flush=flush).manager.counters for flush in (True, False))
    # Not nothing: here a batch can need more than the quarter of the device that is kept free of loss.
    assert with_flush.recomputed < 0.2 * without.recomputed
    assert with_flush.hit_ratio() > without.hit_ratio()


def test_requests_of_one_user_in_one_batch_are_served_in_order() -> None:
    trace = [Request(1, float(time), 10 * (time + 1), 10) for time in range(8)]
    counters = replay(trace).manager.counters
    assert counters.new == 80
    assert counters.found_device == sum(request.known for request in trace)


def test_a_batch_larger_than_the_device_is_served_all_the_same() -> None:
    tight = Geometry(page_tokens=8, chunk_tokens=64, device_pages=100, onload_pages=10, host_chunks=600)
    run = ManagerReplay(tight, ReplayOptions(transfer_delay=5), SHAPE.longest)
    served = list(islice(requests(SHAPE, seed=4), 2_000))
    run.run(served)
    assert run.served == len(served)
    run.manager.check()
