"""Every metric: its name (units as Prometheus wants them), its meaning, and how it is read.

Every series has the labels `model` and `version`; never a user's ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mtserve_backend.metrics.distribution import DistributionState
from mtserve_backend.metrics.state import State

Reading = Iterable[tuple[str, float]]


@dataclass(frozen=True)
class Family:
    """A counter or a gauge. `read` gives, for each value of `label`, the total or the present value.

    A family without a label has one series; its reading's label value is then "".
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[State], Reading]
    label: str = ""


@dataclass(frozen=True)
class Histogram:
    """Durations, told as three families of totals, which are what Prometheus makes of a histogram."""

    name: str
    help: str
    read: Callable[[State], DistributionState]

    def families(self) -> tuple[Family, Family, Family]:
        read = self.read
        return (
            Family(f"{self.name}_bucket", "counter", self.help, _many(lambda state: read(state).buckets), "le"),
            Family(f"{self.name}_sum", "counter", self.help, _one(lambda state: read(state).seconds)),
            Family(f"{self.name}_count", "counter", self.help, _one(lambda state: read(state).count)),
        )


def _one(read: Callable[[State], float]) -> Callable[[State], Reading]:
    return lambda state: (("", read(state)),)


def _many(read: Callable[[State], Mapping[str, float]]) -> Callable[[State], Reading]:
    return lambda state: read(state).items()


def _hit_ratios(state: State) -> dict[str, float]:
    counters = state.engine.counters
    total = counters.found_device + counters.found_host + counters.recomputed + counters.new
    return {"device": counters.found_device / max(1, total), "host": counters.found_host / max(1, total)}


def _pool_bytes(state: State) -> dict[str, float]:
    fixed = state.fixed
    return {
        "device": fixed.geometry.device_pages * fixed.page_bytes,
        "onload": fixed.geometry.onload_pages * fixed.page_bytes,
        "host": fixed.geometry.host_chunks * fixed.chunk_bytes,
    }


def _pool_used_bytes(state: State) -> dict[str, float]:
    fixed, engine = state.fixed, state.engine
    return {
        "device": (fixed.geometry.device_pages - engine.device_pages_free) * fixed.page_bytes,
        "onload": (fixed.geometry.onload_pages - engine.onload_pages_free) * fixed.page_bytes,
        "host": (fixed.geometry.host_chunks - engine.host_chunks_free) * fixed.chunk_bytes,
    }


def _transfer_bytes(state: State) -> dict[str, float]:
    counters, page = state.engine.counters, state.fixed.page_bytes
    return {
        "onload": counters.pages_onloaded * page,
        "scatter": counters.pages_scattered * page,
        "offload": counters.pages_offloaded * page,
    }


FAMILIES: tuple[Family, ...] = (
    Family(
        "mtserve_requests_total",
        "counter",
        "Requests answered, by outcome: ok, or the code of the error.",
        _many(lambda state: state.requests.outcomes),
        "outcome",
    ),
    Family(
        "mtserve_visits_total",
        "counter",
        "Requests answered ok, by where the user's state was found: device, host, or nothing.",
        _many(lambda state: state.requests.visits),
        "found",
    ),
    Family("mtserve_batches_total", "counter", "Executions by Triton.", _one(lambda state: state.requests.batches)),
    Family(
        "mtserve_candidates_total",
        "counter",
        "Candidates scored.",
        _one(lambda state: state.requests.candidates),
    ),
    Family(
        "mtserve_history_tokens_total",
        "counter",
        "History tokens of requests, by source: found on device, found on host, recomputed, or new.",
        _many(
            lambda state: {
                "device": state.engine.counters.found_device,
                "host": state.engine.counters.found_host,
                "recomputed": state.engine.counters.recomputed,
                "new": state.engine.counters.new,
            }
        ),
        "source",
    ),
    Family(
        "mtserve_recomputed_tokens_total",
        "counter",
        "Known tokens computed again, by reason: evicted; rewritten (the history was cut, and part of a page or chunk "
        "with it); window (the model's window moved on); uncached (the mode, or a history larger than the device "
        "cache); failed (a load failed or was late, or the request ran a second time).",
        _many(lambda state: {str(reason): count for reason, count in state.engine.recomputed.items()}),
        "reason",
    ),
    Family(
        "mtserve_hit_ratio",
        "gauge",
        "History tokens found on a tier over all history tokens, new ones included, since the model was loaded.",
        _many(_hit_ratios),
        "tier",
    ),
    Family(
        "mtserve_uncached_requests_total",
        "counter",
        "Requests whose keys were not kept.",
        _one(lambda state: state.engine.counters.uncached_requests),
    ),
    Family("mtserve_waves_total", "counter", "Forward passes.", _one(lambda state: state.engine.waves)),
    Family(
        "mtserve_rows_total",
        "counter",
        "Rows computed: new and recomputed tokens, and candidates.",
        _one(lambda state: state.engine.rows),
    ),
    Family(
        "mtserve_step_seconds_total",
        "counter",
        "Seconds spent in each step of a wave (Algorithm 1 of the paper).",
        _many(lambda state: state.engine.step_seconds),
        "step",
    ),
    Family(
        "mtserve_transfer_bytes_total",
        "counter",
        "Bytes moved by whole transfers: onload (host to device), scatter (onload buffer to pages), offload (to host).",
        _many(_transfer_bytes),
        "direction",
    ),
    Family(
        "mtserve_transfer_seconds_total",
        "counter",
        "Seconds during which bytes moved in a direction; bytes over seconds are the bandwidth.",
        _many(
            lambda state: {
                "onload": state.engine.onload_seconds,
                "scatter": state.engine.scatter_seconds,
                "offload": state.engine.offload_seconds,
            }
        ),
        "direction",
    ),
    Family(
        "mtserve_transfer_failures_total",
        "counter",
        "Transfers that failed or were late: onload (the user is recomputed), offload (the keys stay on the device).",
        _many(
            lambda state: {
                "onload": state.engine.counters.onload_failures,
                "offload": state.engine.counters.offload_failures,
            }
        ),
        "direction",
    ),
    Family(
        "mtserve_offloads_refused_total",
        "counter",
        "Offloads put off for want of quota or of room on the host; they are tried again.",
        _one(lambda state: state.engine.counters.offloads_refused),
    ),
    Family("mtserve_offloads_pending", "gauge", "Offloads under way.", _one(lambda s: s.engine.offloads_pending)),
    Family(
        "mtserve_offload_pending_tokens",
        "gauge",
        "Tokens in transient offload buffers.",
        _one(lambda state: state.engine.offload_pending_tokens),
    ),
    Family(
        "mtserve_offload_quota_tokens",
        "gauge",
        "The most there may be of them: the knob offload_quota_tokens.",
        _one(lambda state: state.fixed.quota_tokens),
    ),
    Family(
        "mtserve_users_unsaved",
        "gauge",
        "Users with whole chunks on the device that are not on the host yet.",
        _one(lambda state: state.engine.users_unsaved),
    ),
    Family("mtserve_pool_bytes", "gauge", "Size of a pool: device, onload or host.", _many(_pool_bytes), "pool"),
    Family("mtserve_pool_used_bytes", "gauge", "Bytes of a pool that are taken.", _many(_pool_used_bytes), "pool"),
    Family(
        "mtserve_cached_tokens",
        "gauge",
        "Tokens whose state is on a tier.",
        _many(
            lambda state: {"device": state.engine.counters.on_device, "host": state.engine.counters.on_host},
        ),
        "tier",
    ),
    Family(
        "mtserve_users",
        "gauge",
        "Users with state on a tier; known: with a token log, wherever their state is.",
        _many(
            lambda state: {
                "known": state.engine.users_known,
                "device": state.engine.users_on_device,
                "host": state.engine.users_on_host,
            }
        ),
        "tier",
    ),
    Family(
        "mtserve_evictions_total",
        "counter",
        "Users evicted from a tier.",
        _many(
            lambda state: {
                "device": state.engine.counters.device_evictions,
                "host": state.engine.counters.host_evictions,
            }
        ),
        "tier",
    ),
    Family(
        "mtserve_evicted_tokens_total",
        "counter",
        "Tokens whose state was evicted from a tier.",
        _many(
            lambda state: {
                "device": state.engine.counters.device_evicted,
                "host": state.engine.counters.host_evicted,
            }
        ),
        "tier",
    ),
    Family(
        "mtserve_evicted_unsaved_tokens_total",
        "counter",
        "Those of them on the device whose state was on the device only, and is lost.",
        _one(lambda state: state.engine.counters.device_evicted_unsaved),
    ),
    Family("mtserve_log_bytes", "gauge", "Memory of the users' token logs.", _one(lambda s: s.engine.log_bytes)),
    Family(
        "mtserve_log_limit_bytes",
        "gauge",
        "The most there may be of it: the knob user_log.",
        _one(lambda state: state.fixed.log_limit_bytes),
    ),
    Family(
        "mtserve_users_dropped_total",
        "counter",
        "Users forgotten because token logs had reached their limit.",
        _one(lambda state: state.engine.counters.logs_dropped),
    ),
    Family(
        "mtserve_users_forgotten_total",
        "counter",
        "Users forgotten because a request asked for it.",
        _one(lambda state: state.engine.counters.users_forgotten),
    ),
    Family(
        "mtserve_engine_up",
        "gauge",
        "1 while the engine takes requests; 0 when its thread or its compute stream has ended.",
        _one(lambda state: float(state.requests.engine_up)),
    ),
    Family(
        "mtserve_streams_broken",
        "gauge",
        "Streams that have died: requests are answered without them, from the device or by recomputing.",
        _one(lambda state: state.engine.streams_broken),
    ),
)

HISTOGRAMS: tuple[Histogram, ...] = (
    Histogram(
        "mtserve_batch_seconds",
        "From Triton's handing over a batch to its answers; Triton's own queue comes on top.",
        lambda state: state.requests.batch_times,
    ),
    Histogram("mtserve_wave_seconds", "Of one forward pass, all steps.", lambda state: state.engine.wave_times),
    Histogram(
        "mtserve_onload_wait_seconds",
        "What a wave with loads waited for them, beside what it computed meanwhile.",
        lambda state: state.engine.onload_waits,
    ),
)

ALL: tuple[Family, ...] = (*FAMILIES, *(family for histogram in HISTOGRAMS for family in histogram.families()))


def table() -> str:
    """All of them as Markdown."""
    rows: list[tuple[str, str, str, str]] = []
    rows += [(f.name, f.kind, f"`{f.label}`" if f.label else "", f.help) for f in FAMILIES]
    rows += [(h.name, "histogram", "`le`", h.help) for h in HISTOGRAMS]
    lines = [f"| `{name}` | {kind} | {label} | {meaning} |" for name, kind, label, meaning in rows]
    return "\n".join(["| metric | kind | label | meaning |", "|---|---|---|---|", *lines])
