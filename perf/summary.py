"""Records of a replay as figures per mode, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf.judged import Judged
from perf.lab.presets import PARADIGMS
from perf.lab.text import aligned
from perf.metrics import RankingQuality, quality
from perf.stats import percentile, ratio

# Relative to the largest score: what float32 sums in another order may differ by.
SCORE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class ModeSummary:
    """One mode's requests. Hit ratios are history tokens taken from the cache over all history tokens."""

    requests: int
    p50_ms: float
    p95_ms: float
    speedup_p50: float
    speedup_total: float
    device_hit_ratio: float
    total_hit_ratio: float
    largest_difference: float
    quality: RankingQuality


def summarize(records: Sequence[Judged]) -> dict[str, ModeSummary]:
    """By mode, in the order of `PARADIGMS`; only modes that answered something."""
    by_mode = {mode: [record for record in records if record.mode == mode] for mode in PARADIGMS}
    baseline = [record.seconds for record in by_mode[PARADIGMS[0]]]
    return {mode: _summary(own, baseline) for mode, own in by_mode.items() if own}


def _summary(records: Sequence[Judged], baseline: Sequence[float]) -> ModeSummary:
    seconds = [record.seconds for record in records]
    tokens = sum(record.length for record in records)
    return ModeSummary(
        requests=len(records),
        p50_ms=percentile(seconds, 50) * 1e3,
        p95_ms=percentile(seconds, 95) * 1e3,
        speedup_p50=ratio(percentile(baseline, 50), percentile(seconds, 50)),
        speedup_total=ratio(sum(baseline), sum(seconds)),
        device_hit_ratio=ratio(sum(record.device for record in records), tokens),
        total_hit_ratio=ratio(sum(record.device + record.host for record in records), tokens),
        largest_difference=max(record.difference for record in records),
        quality=quality(record.rank for record in records if record.judged),
    )


def disagreements(summaries: Mapping[str, ModeSummary]) -> list[str]:
    """Sentences about what differs between the modes and must not; empty: they answered the same."""
    found = [
        f"{mode}: scores differ from {PARADIGMS[0]}'s by {summary.largest_difference:.1e} of the largest score "
        f"(at most {SCORE_TOLERANCE:.0e} is float32 rounding)"
        for mode, summary in summaries.items()
        if not summary.largest_difference <= SCORE_TOLERANCE
    ]
    qualities = {mode: summary.quality for mode, summary in summaries.items()}
    if len(set(qualities.values())) > 1:
        found.append("quality differs: " + "; ".join(f"{mode} {value}" for mode, value in qualities.items()))
    return found


def table(summaries: Mapping[str, ModeSummary]) -> str:
    """For a terminal. HR and NDCG only where requests were judged."""
    judged = any(summary.quality.users for summary in summaries.values())
    head = ["mode", "requests", "p50 ms", "p95 ms", "speed-up", "(in all)", "device hits", "total hits"]
    rows = [head + ["HR@10", "NDCG@10"] * judged]
    for mode, summary in summaries.items():
        row = [
            mode,
            f"{summary.requests:,}",
            f"{summary.p50_ms:,.1f}",
            f"{summary.p95_ms:,.1f}",
            f"{summary.speedup_p50:.2f}x",
            f"{summary.speedup_total:.2f}x",
            f"{summary.device_hit_ratio:.1%}",
            f"{summary.total_hit_ratio:.1%}",
        ]
        rows.append(row + [f"{summary.quality.hr:.4f}", f"{summary.quality.ndcg:.4f}"] * judged)
    return aligned(rows)
