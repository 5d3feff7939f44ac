"""Writes mtserve.json beside this file: the dashboard, from the rows below. `python deploy/grafana/build.py`"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "mtserve.json"
WIDTH, HEIGHT = 24, 8
# What every query selects: `$instance` and `$model` are the dashboard's variables.
OURS = 'instance=~"$instance", model=~"$model"'
EACH = "instance, model"


@dataclass(frozen=True)
class Panel:
    """A graph, or with `kind` stat one number. `queries`: expression to legend."""

    title: str
    unit: str
    queries: dict[str, str]
    description: str = ""
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    limits: dict[str, float] = field(default_factory=dict)


def rate(metric: str, by: str = EACH, selector: str = "") -> str:
    """Of a counter, a second."""
    inside = f"{OURS}, {selector}" if selector else OURS
    return f"sum by ({by}) (rate({metric}{{{inside}}}[$__rate_interval]))"


def ratio(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str) -> str:
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', f'{EACH}, le')})"


def gauge(metric: str, selector: str = "") -> str:
    return f"{metric}{{{f'{OURS}, {selector}' if selector else OURS}}}"


TOKENS = rate("mtserve_history_tokens_total")
HITS = rate("mtserve_history_tokens_total", selector='source=~"device|host"')
QUEUED = f"{rate('nv_inference_queue_duration_us')} / 1e6"
KNOWN_USERS = gauge("mtserve_users", 'tier="known"')
SHARE = {"min": 0.0, "max": 1.0}

ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel("Engines up", "short", {f"sum({gauge('mtserve_engine_up')})": ""}, kind="stat", width=4),
        Panel("Requests a second", "reqps", {f"sum({rate('mtserve_requests_total')})": ""}, kind="stat", width=4),
        Panel("Hit ratio", "percentunit", {ratio(f"sum({HITS})", f"sum({TOKENS})"): ""}, kind="stat", width=4),
        Panel(
            "Batch p99", "s",
            {f"histogram_quantile(0.99, sum by (le) ({rate('mtserve_batch_seconds_bucket', f'{EACH}, le')}))": ""},
            kind="stat", width=4,
        ),
        Panel("Users known", "short", {f"sum({KNOWN_USERS})": ""}, kind="stat", width=4),
        Panel("Streams broken", "short", {f"sum({gauge('mtserve_streams_broken')})": ""}, kind="stat", width=4),
    ],
    "Requests": [
        Panel(
            "Requests by outcome", "reqps",
            {rate("mtserve_requests_total", f"{EACH}, outcome"): "{{model}} {{outcome}}"}, stacked=True,
        ),
        Panel(
            "Latency of a batch in the model", "s",
            {quantile(q, "mtserve_batch_seconds"): f"{{{{model}}}} p{q * 100:g}" for q in (0.5, 0.9, 0.99)},
            "Triton's own queue comes on top: the panel beside this one.",
        ),
        Panel(
            "Wait in Triton's queue", "s",
            {ratio(QUEUED, rate("nv_inference_request_success")): "{{model}}"},
            "Mean. Grows before anything else does when the model cannot keep up.",
        ),
        Panel(
            "Requests in a batch", "short",
            {ratio(rate("mtserve_requests_total"), rate("mtserve_batches_total")): "{{model}}"},
        ),
        Panel(
            "Where users' states were found", "reqps",
            {rate("mtserve_visits_total", f"{EACH}, found"): "{{model}} {{found}}"}, stacked=True,
        ),
        Panel("Candidates scored a second", "short", {rate("mtserve_candidates_total"): "{{model}}"}),
    ],
    "Cache": [
        Panel(
            "Hit ratio", "percentunit",
            {
                ratio(HITS, TOKENS): "{{model}} all",
                ratio(rate("mtserve_history_tokens_total", selector='source="device"'), TOKENS): "{{model}} device",
                ratio(rate("mtserve_history_tokens_total", selector='source="host"'), TOKENS): "{{model}} host",
            },
            "History tokens taken from the cache over all history tokens, new ones included.", limits=SHARE,
        ),
        Panel(
            "History tokens by source", "short",
            {rate("mtserve_history_tokens_total", f"{EACH}, source"): "{{model}} {{source}}"}, stacked=True,
        ),
        Panel(
            "Recomputed tokens by reason", "short",
            {rate("mtserve_recomputed_tokens_total", f"{EACH}, reason"): "{{model}} {{reason}}"}, stacked=True,
        ),
        Panel("Users by tier", "short", {gauge("mtserve_users"): "{{model}} {{tier}}"}),
        Panel(
            "Evictions", "short",
            {rate("mtserve_evictions_total", f"{EACH}, tier"): "{{model}} {{tier}}"}, "Users a second.",
        ),
        Panel(
            "Tokens evicted", "short",
            {
                rate("mtserve_evicted_tokens_total", f"{EACH}, tier"): "{{model}} {{tier}}",
                rate("mtserve_evicted_unsaved_tokens_total"): "{{model}} lost",
            },
            "lost: on the device only, so that they must be computed again.",
        ),
    ],
    "Memory": [
        Panel(
            "Pools", "percentunit",
            {ratio(gauge("mtserve_pool_used_bytes"), gauge("mtserve_pool_bytes")): "{{model}} {{pool}}"},
            "Device and host are meant to be full: what counts is whether evicted users come back.", limits=SHARE,
        ),
        Panel("Tokens cached", "short", {gauge("mtserve_cached_tokens"): "{{model}} {{tier}}"}),
        Panel(
            "Token logs", "bytes",
            {gauge("mtserve_log_bytes"): "{{model}}", gauge("mtserve_log_limit_bytes"): "{{model}} limit"},
        ),
        Panel(
            "Users forgotten", "short",
            {
                rate("mtserve_users_dropped_total"): "{{model}} log full",
                rate("mtserve_users_forgotten_total"): "{{model}} asked for",
            },
        ),
    ],
    "Transfers": [
        Panel(
            "Bytes moved", "Bps",
            {rate("mtserve_transfer_bytes_total", f"{EACH}, direction"): "{{model}} {{direction}}"},
        ),
        Panel(
            "Bandwidth while moving", "Bps",
            {
                ratio(
                    rate("mtserve_transfer_bytes_total", f"{EACH}, direction"),
                    rate("mtserve_transfer_seconds_total", f"{EACH}, direction"),
                ): "{{model}} {{direction}}"
            },
        ),
        Panel(
            "Wait for onload", "s",
            {quantile(q, "mtserve_onload_wait_seconds"): f"{{{{model}}}} p{q * 100:g}" for q in (0.5, 0.99)},
            "Of waves with loads: what the overlap did not hide.",
        ),
        Panel(
            "Offloads pending", "short",
            {
                gauge("mtserve_offload_pending_tokens"): "{{model}} tokens",
                gauge("mtserve_offload_quota_tokens"): "{{model}} quota",
                gauge("mtserve_offloads_pending"): "{{model}} offloads",
                gauge("mtserve_users_unsaved"): "{{model}} users waiting",
            },
        ),
        Panel("Offloads refused", "short", {rate("mtserve_offloads_refused_total"): "{{model}}"}),
        Panel(
            "Transfers failed", "short",
            {rate("mtserve_transfer_failures_total", f"{EACH}, direction"): "{{model}} {{direction}}"},
        ),
    ],
    "Compute": [
        Panel(
            "Time by step", "percentunit",
            {rate("mtserve_step_seconds_total", f"{EACH}, step"): "{{model}} {{step}}"},
            "Seconds a second, so the sum is the engine's load.", stacked=True,
        ),
        Panel(
            "Wave", "s",
            {quantile(q, "mtserve_wave_seconds"): f"{{{{model}}}} p{q * 100:g}" for q in (0.5, 0.99)},
            "One forward pass, all steps.",
        ),
        Panel(
            "Rows in a wave", "short",
            {ratio(rate("mtserve_rows_total"), rate("mtserve_waves_total")): "{{model}}"},
        ),
        Panel(
            "Requests not cached", "reqps", {rate("mtserve_uncached_requests_total"): "{{model}}"},
            "Their histories are larger than the device cache, or the mode keeps nothing.",
        ),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(title, len(panels) + 1, y))
        y, x = y + 1, 0
        for panel in row:
            height = 4 if panel.kind == "stat" else HEIGHT
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": panel.width, "h": height}))
            x += panel.width
        y += height
    return {
        "uid": "mtserve",
        "title": "mtserve",
        "description": "User states, tiers, transfers and latencies of mtserve. Every metric: docs/metrics.md.",
        "tags": ["mtserve", "triton"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _variable("instance"), _variable("model")]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {"fillOpacity": 15, "showPoints": "never", "stacking": {"mode": "normal" if panel.stacked else "none"}}
    defaults: dict[str, Any] = {"unit": panel.unit, **panel.limits}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend or "__auto"}
            for at, (expression, legend) in enumerate(panel.queries.items())
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values(mtserve_engine_up, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
