"""`python -m perf.tokens`: tokens that a model processes for three requests of a user in a row (the paper's Figure 1).

A user with a history of about 1,300 tokens comes three times, with and without reuse, through real Triton: the tokens
are those that each answer's CACHE_INFO says were computed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.population import Population
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.lab.servers import knobs, serving

HISTORY, NEW, REQUESTS = 1_300, 32, 3


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    history = HISTORY if preset.model.max_history > 2 * HISTORY else preset.history
    people = Population(preset, [history], NEW, preset.candidates, seed)
    room = history + NEW * (REQUESTS + 1)
    common = knobs(preset, room + preset.page_tokens, 2 * room + preset.chunk_tokens, room)
    # The first request is of a user whom nobody knows; that is where both begin.
    visits = [people.first[0], *(people.visit(1) for _ in range(REQUESTS - 1))]
    processed: dict[str, list[int]] = {}
    with serving(preset, {mode: {**common, "cache_mode": mode} for mode in ("recompute", "hierarchical")}) as served:
        for mode, own in served.items():
            answers = [own.ask(visit) for visit in visits]
            processed[mode] = [
                answer.tokens[2] + answer.tokens[3] + len(visit.candidates)
                for answer, visit in zip(answers, visits, strict=True)
            ]
    rows = [[mode, *(f"{count:,}" for count in own), f"{sum(own):,}"] for mode, own in processed.items()]
    printed = [[name, *("-",) * REQUESTS, f"{count:,}"] for name, count in paper.FIGURE_1.items()]
    findings.tables.append(
        Table(
            f"Tokens processed for {REQUESTS} requests of one user (Figure 1), candidates included",
            ["paradigm", *(f"request {n + 1}" for n in range(REQUESTS)), "in all"], rows, printed,
            "the paper's user was known before; ours is new to both at the first request",
        )
    )  # fmt: skip
    findings.figures += [
        figure(f"tokens, {mode}", [float(sum(own))], "tokens", plot="tokens", series=mode, x=0.0)
        for mode, own in processed.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    return run("tokens", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
