"""What is known of a model at one moment. Immutable, so that one thread makes it and another reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mtserve_backend.cache.records import Counters, Geometry, RecomputeReason
from mtserve_backend.metrics.distribution import DistributionState


@dataclass(frozen=True)
class Fixed:
    """What does not change while a model is loaded. Bytes of a device page (and of a page's part of a chunk)."""

    geometry: Geometry
    page_bytes: int
    quota_tokens: int
    log_limit_bytes: int

    @property
    def chunk_bytes(self) -> int:
        return self.page_bytes * self.geometry.chunk_pages


@dataclass(frozen=True)
class EngineState:
    """Taken by the engine's thread, between batches. Totals are since the model was loaded."""

    counters: Counters
    recomputed: Mapping[RecomputeReason, int]
    waves: int
    rows: int
    step_seconds: Mapping[str, float]
    wave_times: DistributionState
    onload_waits: DistributionState
    onload_seconds: float
    scatter_seconds: float
    offload_seconds: float
    device_pages_free: int
    onload_pages_free: int
    host_chunks_free: int
    users_known: int
    users_on_device: int
    users_on_host: int
    users_unsaved: int
    offloads_pending: int
    offload_pending_tokens: int
    log_bytes: int
    streams_broken: int


@dataclass(frozen=True)
class RequestState:
    """Taken from the thread that answers requests."""

    batches: int
    outcomes: Mapping[str, int]
    visits: Mapping[str, int]
    candidates: int
    batch_times: DistributionState
    engine_up: bool


@dataclass(frozen=True)
class State:
    """All of it."""

    fixed: Fixed
    engine: EngineState
    requests: RequestState
