"""`python -m perf.memory`: the paper's Appendix C, what memory goes where, planned and as the system measures it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mtserve_backend.config import Config
from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.footprint import WORKBENCH_BASE_BYTES
from mtserve_backend.models.hstu import HSTU
from perf.lab import paper
from perf.lab.command import Command, Refused, Run, start
from perf.lab.pools import Pools, knobs
from perf.lab.presets import PAPER
from perf.lab.result import Cell, Column, Plot, Series, Table, figure
from perf.lab.rig import model_folder
from perf.traffic.server import ServerTarget, serving
from perf.traffic.target import checked
from perf.visits import SyntheticUsers

ABOUT = """\
What the paper's configuration takes of a GPU's memory when mtserve serves it, beside the paper's Appendix C: a
calculation. And measured on this machine, through a real server: what start-up said the model's process would use, and
the most it did use while its caches were filled, evicted and read back, with batches, and with one history that is
computed uncached."""
EXAMPLE = "--preset smoke --json memory.json"
MIB = 2**20
WITHIN = 0.10
# The paper's Appendix C: pages of 32, primary and onload; bfloat16.
PAPER_PAGES, PAPER_ONLOAD, PAPER_PAGE_TOKENS, PAPER_VALUE_BYTES = 40_960, 10_008, 32, 2
SAID = re.compile(r"memory of this process: ([\d.,]+) MiB now, at most ([\d.,]+) MiB")
PLANNED = re.compile(
    r"memory planned: device cache ([\d.,]+) MiB, onload buffer ([\d.,]+) MiB, host cache ([\d.,]+) MiB, "
    r"weights ([\d.,]+) MiB, workbench up to ([\d.,]+) MiB and ([\d.,]+) MiB more .*user logs up to ([\d.,]+) MiB"
)
PARTS = ("device cache", "onload buffer", "host cache", "weights", "workbench", "uncached history", "user logs")


@dataclass(frozen=True)
class Sizes:
    """`users` with histories of `history` tokens; the device has room for a third of them, the host for all."""

    users: int
    history: int
    batch: int


SIZES = {"smoke": Sizes(12, 300, 4), "cpu": Sizes(18, 2_000, 4), "gpu": Sizes(96, 6_400, 8)}
USER_LOG = "4MiB"


@dataclass(frozen=True)
class Seen:
    """MiB. What start-up planned by part, what it said of the whole, and what the system measured."""

    planned: tuple[float, ...]
    said_now: float
    said_most: float
    peak: float


def _measure(run: Run) -> None:
    run.tables += [_calculated(), paper.memory()]
    if run.preset.device == "cuda":
        raise Refused(
            "the process's memory is the device's on a CPU only: preset smoke or cpu; perf.gpu measures a GPU's"
        )
    seen = _served(run)
    rows: list[list[Cell]] = [[name, size] for name, size in zip(PARTS, seen.planned, strict=True)]
    rows += [["said at start-up: now", seen.said_now], ["said at start-up: at most", seen.said_most]]
    rows.append(["measured: peak", seen.peak])
    columns = [Column(name="part"), Column(name="size", unit="MiB")]
    run.tables.append(Table(key="memory", title="Memory of the model's process", columns=columns, rows=rows))
    run.figures += [
        figure("peak of the process", seen.peak, "MiB"),
        figure("start-up said at most", seen.said_most, "MiB", "neither"),
        figure(
            "peak beside what start-up said, difference", abs(seen.peak / seen.said_most - 1), "%", aim=run.aim(WITHIN)
        ),
    ]
    labels: list[float | str] = ["planned", "measured"]
    rest = seen.said_most - sum(seen.planned)
    series = [Series(label=name, x=labels, y=[size, 0.0]) for name, size in zip(PARTS, seen.planned, strict=True)] + [
        Series(label="Python and libraries", x=labels, y=[rest, 0.0]),
        Series(label="peak", x=labels, y=[0.0, seen.peak]),
    ]
    title = "Memory: planned parts and the measured peak"
    run.plots.append(Plot(key="memory", title=title, kind="stacked", x_label="", y_label="MiB", series=series))


def _calculated() -> Table:
    """Ours in the paper's configuration; the workbench's rows are the knob pass_tokens, not the batch's."""
    model, pass_tokens = HSTU(PAPER), int(Config.model_fields["pass_tokens"].default)
    page = 2 * PAPER.layers * PAPER.heads * PAPER.head_dim * PAPER_PAGE_TOKENS * PAPER_VALUE_BYTES
    weights = sum(parameter.numel() for parameter in model.parameters()) * PAPER_VALUE_BYTES
    workbench = pass_tokens * model.row_values * PAPER_VALUE_BYTES + WORKBENCH_BASE_BYTES
    sizes = {
        "primary cache": PAPER_PAGES * page,
        "onload buffer": PAPER_ONLOAD * page,
        f"workbench, slices of {pass_tokens:,} rows": workbench,
        "weights": weights,
    }
    rows: list[list[Cell]] = [[name, size / MIB] for name, size in (*sizes.items(), ("in all", sum(sizes.values())))]
    columns = [Column(name="part"), Column(name="size", unit="MiB", digits=0)]
    note = "the paper's pages, bfloat16; libraries and the CUDA context come on top"
    title = "mtserve in the paper's configuration"
    return Table(key="configuration", title=title, columns=columns, rows=rows, origin="calculated", note=note)


def _served(run: Run) -> Seen:
    preset, sizes = run.preset, SIZES[run.preset.size]
    users = range(1, sizes.users + 1)
    room = sizes.history + 8 * preset.new
    pools = Pools(sizes.users * room // 3, sizes.batch * room, sizes.users * room, sizes.users)
    # Uncached is what does not fit on the device; such a history is the longest that is allowed.
    longest = min(preset.model.max_history, pools.device + preset.page_tokens)
    limits = {"user_log": USER_LOG, "max_events": str(longest), "max_candidates": "64"}
    model = {"hierarchical": knobs(preset, "hierarchical", pools) | limits}
    people = SyntheticUsers(preset.model.items, preset.model.actions, run.seed)
    with (
        model_folder(preset.model, run.seed) as folder,
        serving(folder, model, batches=True) as server,
        ServerTarget(server.grpc_url, "hierarchical", sizes.batch) as target,
        closing(run.bar("visits", 3 * sizes.users + 1)) as bar,
    ):
        said = _said(server)
        for new in (sizes.history, preset.new, preset.new):
            for first in range(0, sizes.users, sizes.batch):
                batch = users[first : first + sizes.batch]
                checked(target.serve([people.visit(user, new, preset.candidates) for user in batch]))
                target.settle()
                bar.update(len(batch))
        checked(target.serve([people.visit(sizes.users + 1, longest, preset.candidates)]))
        bar.update()
        return Seen(*said, _peak_mib(server.pid))


def _said(server: EmbeddedServer) -> tuple[tuple[float, ...], float, float]:
    log = server.log_path.read_text(encoding="utf-8", errors="replace") if server.log_path else ""
    planned, said = PLANNED.search(log), SAID.search(log)
    if planned is None or said is None:
        raise Refused("the server's log does not say what memory it planned: is this the model's own version?")
    return tuple(map(_number, planned.groups())), _number(said[1]), _number(said[2])


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _peak_mib(server: int) -> float:
    """The most that the model's process, a descendant of the server's, has had in memory."""
    for pid in _descendants(server):
        status = _status(pid)
        if status.get("Name", "").startswith("triton_python"):
            # What is shared with the server is Triton's, not the model's.
            return (_kib(status["VmHWM"]) - _kib(status["RssShmem"])) / 1024
    raise Refused(f"the server {server} has no process of a Python model")


def _kib(text: str) -> int:
    return int(text.split()[0])


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text(encoding="ascii").split()):
            yield child
            yield from _descendants(child)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


COMMAND = Command("memory", ABOUT, EXAMPLE, _measure)

if __name__ == "__main__":
    start(COMMAND)
