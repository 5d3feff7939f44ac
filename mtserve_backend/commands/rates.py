"""What two looks at the metrics port say of the time between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mtserve_backend.commands.scrape import Scrape
from mtserve_backend.metrics.distribution import INFINITE

NOTHING = math.nan


@dataclass(frozen=True)
class PoolView:
    """Bytes of a pool."""

    size: float
    used: float


@dataclass(frozen=True)
class ModelView:
    """One model between two looks. Rates are a second, latencies in seconds; NaN where nothing happened."""

    name: str
    up: bool
    outcomes: Mapping[str, float]
    latency: Mapping[float, float]
    queue_s: float
    hit_ratio: Mapping[str, float]
    hit_ratio_since_start: float
    tokens: Mapping[str, float]
    pools: Mapping[str, PoolView]
    users: Mapping[str, float]
    cached_tokens: Mapping[str, float]
    evictions: Mapping[str, float]
    moved_bytes: Mapping[str, float]
    bandwidth: Mapping[str, float]
    failures: Mapping[str, float]
    offload_pending_tokens: float
    offload_quota_tokens: float
    rows: float
    busy: float
    batch_requests: float
    onload_wait_p99: float
    log_bytes: float
    log_limit_bytes: float
    streams_broken: float


QUANTILES = (0.5, 0.9, 0.99)


class Between:
    """Differences of one model's totals, a second."""

    def __init__(self, before: Scrape, after: Scrape, seconds: float, model: str) -> None:
        self._before, self._after, self._seconds, self._model = before, after, seconds, model

    def rate(self, name: str) -> float:
        before, after = (scrape.total(name, self._model) for scrape in (self._before, self._after))
        return grown(before, after) / self._seconds

    def rates(self, name: str, label: str) -> dict[str, float]:
        before = self._before.by(name, label, self._model)
        after = self._after.by(name, label, self._model)
        return {key: grown(before.get(key, 0.0), value) / self._seconds for key, value in after.items()}

    def quantiles(self, histogram: str) -> dict[float, float]:
        buckets = self.rates(f"{histogram}_bucket", "le")
        return {q: quantile(q, buckets) for q in QUANTILES}


def grown(before: float, after: float) -> float:
    """By how much a total has grown; a smaller one began anew with its server."""
    return after - before if after >= before else after


def quotient(part: float, whole: float) -> float:
    return part / whole if whole else NOTHING


def quantile(q: float, buckets: Mapping[str, float]) -> float:
    """As Prometheus's `histogram_quantile`: linear inside a bucket; beyond the last bound, that bound."""
    total = buckets.get(INFINITE, 0.0)
    if not total:
        return NOTHING
    wanted, low, below = q * total, 0.0, 0.0
    for bound, count in sorted((float(bound), count) for bound, count in buckets.items() if bound != INFINITE):
        if count >= wanted:
            return low + (bound - low) * quotient(wanted - below, count - below) if count > below else bound
        low, below = bound, count
    return low


def view(before: Scrape, after: Scrape, seconds: float, model: str) -> ModelView:
    """`seconds` between the two."""
    between = Between(before, after, seconds, model)
    tokens = between.rates("mtserve_history_tokens_total", "source")
    ever = after.by("mtserve_history_tokens_total", "source", model)
    moved = between.rates("mtserve_transfer_bytes_total", "direction")
    moving = between.rates("mtserve_transfer_seconds_total", "direction")
    used = after.by("mtserve_pool_used_bytes", "pool", model)
    requests = between.rates("mtserve_requests_total", "outcome")
    all_tokens = sum(tokens.values())
    return ModelView(
        name=model,
        up=after.total("mtserve_engine_up", model) > 0,
        outcomes=requests,
        latency=between.quantiles("mtserve_batch_seconds"),
        queue_s=quotient(
            between.rate("nv_inference_queue_duration_us_total") / 1e6,
            between.rate("nv_inference_request_success_total"),
        ),
        hit_ratio={source: quotient(tokens.get(source, 0.0), all_tokens) for source in ("device", "host")},
        hit_ratio_since_start=quotient(ever.get("device", 0.0) + ever.get("host", 0.0), sum(ever.values())),
        tokens=tokens,
        pools={
            pool: PoolView(size, used.get(pool, 0.0))
            for pool, size in after.by("mtserve_pool_bytes", "pool", model).items()
        },
        users=after.by("mtserve_users", "tier", model),
        cached_tokens=after.by("mtserve_cached_tokens", "tier", model),
        evictions=between.rates("mtserve_evictions_total", "tier"),
        moved_bytes=moved,
        bandwidth={direction: quotient(moved[direction], moving.get(direction, 0.0)) for direction in moved},
        failures=after.by("mtserve_transfer_failures_total", "direction", model),
        offload_pending_tokens=after.total("mtserve_offload_pending_tokens", model),
        offload_quota_tokens=after.total("mtserve_offload_quota_tokens", model),
        rows=between.rate("mtserve_rows_total"),
        busy=between.rate("mtserve_step_seconds_total"),
        batch_requests=quotient(sum(requests.values()), between.rate("mtserve_batches_total")),
        onload_wait_p99=between.quantiles("mtserve_onload_wait_seconds")[0.99],
        log_bytes=after.total("mtserve_log_bytes", model),
        log_limit_bytes=after.total("mtserve_log_limit_bytes", model),
        streams_broken=after.total("mtserve_streams_broken", model),
    )
