"""`python -m perf.memory`: what a server takes of memory, against what it said at start-up (the paper's Appendix C).

A hierarchical model is loaded, its caches are filled, and the longest history that it takes is sent whole and new. What
the start-up log announced as the most is held against the largest size that the model's process ever had.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mtserve_client import Events, RankingClient

from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.models import weights
from mtserve_backend.models.hstu import HSTU
from mtserve_backend.repository import write_model
from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.population import Population
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.lab.servers import PATIENCE_S, knobs

MIB = 1 << 20
PLANNED = re.compile(r"([a-z][a-z ]*?)(?: up to)? ([\d,.]+) MiB")
NAMES = {"and": "workbench, more while uncached"}
ANNOUNCED = re.compile(r"memory of this process: ([\d,.]+) MiB now, at most ([\d,.]+) MiB")


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    if preset.gpu:
        raise RuntimeError("on a GPU the device's memory counts, which perf.gpu and tests/gpu hold against the plan")
    users, longest = 8, preset.model.max_history - preset.new
    people = Population(preset, [preset.history] * users + [longest], preset.new, preset.candidates, seed)
    common = knobs(preset, 2 * people.tokens, 3 * people.tokens, people.tokens)
    with tempfile.TemporaryDirectory(prefix="mtserve-memory-") as name:
        folder = Path(name)
        weights.save(HSTU(preset.model), folder / "weights")
        write_model(folder / "repository", "hstu", folder / "weights", {**common, "user_log": "16MiB"})
        log = folder / "server.log"
        with EmbeddedServer(folder / "repository", log_file=log, ready_timeout=PATIENCE_S) as server:
            (stub,) = map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text("ascii").split())
            with RankingClient(server.grpc_url, model="hstu", timeout_s=PATIENCE_S) as client:
                for visit in people.first:
                    client.rank(visit.user, Events(visit.items, visit.actions), visit.candidates)
                for user in people.users:
                    visit = people.visit(user)
                    client.rank(visit.user, Events(visit.items, visit.actions), visit.candidates)
            largest = _largest_bytes(stub)
            text = log.read_text(encoding="utf-8", errors="replace")
    _report(preset, text, largest, findings)


def _report(preset: Preset, text: str, largest: int, findings: Findings) -> None:
    announced, planned = ANNOUNCED.search(text), text.partition("memory planned: ")[2].partition("\n")[0]
    if announced is None or not planned:
        raise RuntimeError("the server's log says nothing of memory: is it this version's?")
    at_start, at_most = (float(value.replace(",", "")) for value in announced.groups())
    rows = [[NAMES.get(name, name), f"{float(size.replace(',', '')):,.1f}"] for name, size in PLANNED.findall(planned)]
    rows += [
        ["the process at start-up", f"{at_start:,.1f}"],
        ["announced at most", f"{at_most:,.1f}"],
        ["the largest it was", f"{largest / MIB:,.1f}"],
    ]
    printed = [[f"{name}, on the GPU", f"{size:,}"] for name, size in paper.APPENDIX_C.items()]
    findings.tables.append(Table("Memory (Appendix C), MiB", ["what", "MiB"], rows, printed))
    # What a small model takes beside Python and torch is less than the bounds of its workbench.
    aim = 10.0 if preset.name == "cpu" else None
    findings.figures.append(
        figure("announced over the largest it was", [100 * (at_most / (largest / MIB) - 1)], "%", aim=aim)
    )
    if largest / MIB > at_most:
        raise RuntimeError(f"the process had {largest / MIB:,.1f} MiB, more than the {at_most:,.1f} MiB announced")


def _largest_bytes(pid: int) -> int:
    """The most that was resident at any time, without memory that is shared with the server."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = {line.split(":")[0]: line.split(":")[1] for line in lines}
    peak, shared = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "RssShmem"))
    return peak - shared


def main(argv: Sequence[str] | None = None) -> int:
    return run("memory", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
