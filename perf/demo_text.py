"""What the demo says about what it measured: tables, sentences, problems, and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perf.demo_parts import CANDIDATES, NEW_EVENTS, Measured
from perf.judged import Judged
from perf.lab.presets import PARADIGMS
from perf.lab.text import aligned
from perf.metrics import RankingQuality
from perf.movielens import MovieLens
from perf.paper_model import CONFIG
from perf.plot import LINES, medians
from perf.summary import ModeSummary, disagreements, summarize, table
from perf.train import METRICS_FILE

PAPER_SIZE = f"{CONFIG.layers} layers, {CONFIG.heads} heads x {CONFIG.head_dim}, hidden {CONFIG.hidden}, float32"


def movielens_text(data: MovieLens, weights: Path, records: Sequence[Judged]) -> tuple[str, list[str]]:
    """The text, and what is wrong; both empty where nothing was measured."""
    summaries = summarize(records)
    if not summaries:
        return "", []
    recorded = RankingQuality(**json.loads((weights / METRICS_FILE).read_text(encoding="utf-8"))["test"])
    measured = next(iter(summaries.values())).quality
    problems = disagreements(summaries)
    lines = [
        f"MovieLens users on the committed model (2 layers, 64 wide); every visit ranks all {data.items - 1:,} movies",
        table(summaries),
    ]
    if not problems:
        lines.append(
            f"HR@{measured.k} and NDCG@{measured.k} of {measured.users} users' held-out last movies are equal in the "
            f"three modes, as they must be\n(all movies are ranked, those rated before too). "
            f"When the weights were trained, in one process: {recorded}."
        )
    if measured.users == recorded.users and abs(measured.ndcg - recorded.ndcg) > 1e-3:
        problems.append(f"quality is {measured}; when the weights were trained it was {recorded}")
    lines.append(_modesty(summaries))
    ranking = _one_ranking(data, records)
    return "\n".join([*lines, *([ranking] if ranking else [])]), problems


def paper_text(measured: Measured, history: int) -> tuple[str, list[str]]:
    """As `movielens_text`."""
    summaries = summarize(measured.paper)
    if not summaries:
        return "", []
    problems = disagreements(summaries) + disagreements(summarize(measured.sweep))
    lines = [
        f"The paper's model size ({PAPER_SIZE}; random weights), histories of about {history:,} events;",
        f"each visit brings {NEW_EVENTS} new events and {CANDIDATES} candidates; the device holds half of all events",
        table(summaries),
    ]
    if not problems:
        lines.append("Scores are equal in the three modes, within float32 rounding.")
    if measured.sweep:
        lines += ["", _sweep_table(measured.sweep)]
    return "\n".join(lines), problems


def figures(measured: Measured) -> dict[str, Any]:
    """For --json."""
    return {
        "movielens": {mode: asdict(summary) for mode, summary in summarize(measured.movielens).items()},
        "paper_model": CONFIG.to_json(),
        "paper": {mode: asdict(summary) for mode, summary in summarize(measured.paper).items()},
        "sweep": [
            {"mode": mode, "found": found, "history": length, "p50_ms": 1e3 * seconds}
            for (mode, found), points in medians(measured.sweep).items()
            for length, seconds in points
        ],
    }


def _modesty(summaries: dict[str, ModeSummary]) -> str:
    last = summaries[PARADIGMS[-1]].speedup_p50 if PARADIGMS[-1] in summaries else float("nan")
    return (
        "Histories are short here (about a hundred events) and the model is tiny: there is little to save, "
        f"and the speed-up is modest\n({last:.2f}x at p50). It is made for long histories and large models: below."
    )


def _one_ranking(data: MovieLens, records: Sequence[Judged]) -> str:
    """Of the last judged user whose held-out movie was found; of anybody else if there is none."""
    judged = [record for record in records if record.judged]
    if not judged:
        return ""
    chosen = next((record for record in reversed(judged) if record.rank is not None), judged[-1])
    history = data.histories[chosen.user - 1]
    rated, target = set(history.items[:-1].tolist()), int(history.items[-1])
    lately = "; ".join(data.title(int(item)) for item in history.items[-4:-1])
    lines = [f"\nUser {history.user} lately rated {lately}", "and is shown:"]
    for place, item in enumerate(chosen.ranking, start=1):
        note = "  <- what the user rated next" if item == target else "  (rated before)" if item in rated else ""
        lines.append(f"  {place:2}. {data.title(item)}{note}")
    return "\n".join(lines)


def _sweep_table(records: Sequence[Judged]) -> str:
    found = medians(records)
    lengths = sorted({length for points in found.values() for length, _ in points})
    rows = [["a returning user's request, ms", *(f"{length:,}" for length in lengths)]]
    for line, (label, _) in LINES.items():
        points = dict(found.get(line, []))
        cells = (f"{1e3 * points[length]:,.0f}" if length in points else "-" for length in lengths)
        rows.append([label, *cells])
    return aligned(rows)
