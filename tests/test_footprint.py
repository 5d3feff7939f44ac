"""What start-up says of memory, and what it refuses."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from mtserve_backend import footprint
from mtserve_backend.cache.records import Geometry
from mtserve_backend.config import Config
from mtserve_backend.footprint import DeviceMemory, Footprint
from mtserve_backend.models.config import HSTUConfig
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.transfer.pools import PoolError, Pools

MIB = 1 << 20
PLANNED = Footprint(
    primary=20_480 * MIB, onload=5_004 * MIB, host=0, weights=64 * MIB, workbench=300 * MIB, uncached=500 * MIB,
    user_logs=256 * MIB,
)  # fmt: skip
HELD = (20_480 + 5_004 + 64) * MIB
ROOMY = DeviceMemory("cuda:0 (a GPU)", total=81_920 * MIB, free=56_000 * MIB, reserved=HELD)


def test_what_is_planned_is_what_the_pools_the_weights_and_the_knobs_say() -> None:
    config = HSTUConfig(layers=1, heads=1, head_dim=2, hidden=2, items=4, actions=2, max_history=8, tasks=("x",))
    model = HSTU(config)
    geometry = Geometry(page_tokens=4, chunk_tokens=8, device_pages=10, onload_pages=5, host_chunks=3)
    pools = Pools.allocate(geometry, model.kv_shape, torch.device("cpu"), torch.float32)
    knobs = Config(pass_tokens=16, max_events=100, max_candidates=7, user_log="1MiB")
    planned = footprint.footprint(model, footprint.weight_bytes(model), geometry, pools, knobs, torch.float32)
    token = 2 * 2 * 4
    assert planned == Footprint(
        primary=10 * 4 * token,
        onload=5 * 4 * token,
        host=3 * 8 * token,
        weights=sum(p.numel() for p in model.parameters()) * 4,
        workbench=16 * model.row_values * 4 + footprint.WORKBENCH_BASE_BYTES,
        uncached=(8 + 7) * model.uncached_row_values * 4,
        user_logs=MIB,
    )


def test_a_device_is_reported_beside_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        footprint.report_device(PLANNED, ROOMY)
    (record,) = caplog.records
    for said in ("25,548.0 MiB", "56,000.0 MiB of 81,920.0 MiB", "800.0 MiB", "cuda:0 (a GPU)"):
        assert said in record.getMessage()


@pytest.mark.parametrize(("free", "reserved"), [(299, 0), (0, 299), (199, 100)])
def test_a_slice_of_work_that_does_not_fit_stops_start_up(free: int, reserved: int) -> None:
    memory = replace(ROOMY, free=free * MIB, reserved=HELD + reserved * MIB)
    with pytest.raises(PoolError, match=r"pass_tokens rows takes up to 300\.0 MiB: lower device_cache"):
        footprint.report_device(PLANNED, memory)


@pytest.mark.parametrize(("free", "reserved"), [(300, 0), (0, 300), (499, 300)])
def test_a_request_that_may_not_fit_is_warned_of(caplog: pytest.LogCaptureFixture, free: int, reserved: int) -> None:
    memory = replace(ROOMY, free=free * MIB, reserved=HELD + reserved * MIB)
    footprint.report_device(PLANNED, memory)
    assert [record.levelname for record in caplog.records if "such a request can fail" in record.getMessage()]


def test_a_process_is_announced_with_all_that_requests_may_add(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        footprint.report_process(PLANNED, resident=1000 * MIB)
    assert "1,000.0 MiB now, at most 2,056.0 MiB" in caplog.text


def test_the_process_knows_its_own_size() -> None:
    before = footprint.resident_bytes()
    assert before is not None
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    after = footprint.resident_bytes()
    assert after is not None
    assert 60 * MIB < after - before < 100 * MIB
