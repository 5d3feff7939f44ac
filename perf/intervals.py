"""`python -m perf.intervals`: how soon users come back (the paper's Figure 4), on the generated KuaiRand-like trace.

The intervals between consecutive requests of a user. What is published is that most users return soon and some stay
away for long; the generator's own shape is an assumption.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from perf.lab.command import Findings, run
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.traces.generator import requests
from perf.traces.shapes import Shape

# Names of the classes, and where each ends, in seconds.
CLASSES = {
    "up to 5 minutes": 300.0, "up to an hour": 3_600.0, "up to a day": 86_400.0, "up to a week": 7 * 86_400.0,
    "longer": float("inf"),
}  # fmt: skip
USERS = {"smoke": 10, "cpu": 200}
ALL_USERS = 1_000


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    users = USERS.get(preset.name, ALL_USERS)
    last: dict[int, float] = {}
    found: list[float] = []
    for request in requests(Shape(users=users), seed):
        if request.user in last:
            found.append(request.time - last[request.user])
        last[request.user] = request.time
    intervals, begin = np.array(found), 0.0
    rows: list[list[str]] = []
    for number, (name, end) in enumerate(CLASSES.items()):
        share = 100 * float(np.mean((intervals > begin) & (intervals <= end)))
        below = 100 * float(np.mean(intervals <= end))
        rows.append([name, f"{share:.1f}%", f"{below:.1f}%"])
        findings.figures.append(
            figure(f"intervals {name}", [share], "%", "higher", plot="intervals", series="share", x=number)
        )
        begin = end
    middle, far = (float(np.percentile(intervals, q)) for q in (50, 95))
    findings.figures.append(figure("median interval", [middle], "s"))
    findings.tables.append(
        Table(
            f"Intervals between a user's requests (Figure 4): {len(intervals):,} of {users:,} users",
            ["interval", "share", "so far"],
            rows,
            note=f"median {middle:,.0f} s, 95% below {far / 3600:,.1f} h; generated, not KuaiRand's own log",
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run("intervals", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
