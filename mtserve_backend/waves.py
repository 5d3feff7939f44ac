"""A wave: requests of different users that run together; and the rows it is computed in, at most so many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mtserve_backend.cache.history import Items
from mtserve_backend.cache.records import Lease, LookUp
from mtserve_backend.kernels.layout import Segment
from mtserve_backend.models.contract import Rows
from mtserve_backend.ranking import RankRequest
from mtserve_backend.transfer.view import Placement

NO_ACTION = -1


@dataclass(eq=False)
class Job:
    """One request on its way. `index` is its place in the caller's batch; `outputs` gathers the rows to be scored.

    `candidates` are the model's rows for those of the request.
    """

    index: int
    request: RankRequest
    candidates: Items
    attempts: int = 0
    alone: bool = False
    look_up: LookUp | None = None
    lease: Lease | None = None
    new: int | None = None
    outputs: list[torch.Tensor] = field(default_factory=list)

    def note_new(self) -> None:
        """What was new to the first attempt's look-up is new to the request: later attempts find it in the log."""
        if self.lease is not None:
            if self.new is None:
                self.new = self.lease.new
            self.lease.recomputed += self.lease.new - self.new
            self.lease.new = self.new
            if self.attempts:
                self.lease.reason = "failed"


@dataclass(frozen=True)
class JobRows:
    """All rows of one job: its uncached history, then its target rows. Scored are rows `scored_from ...`."""

    job: Job
    lease: Lease
    items: np.ndarray[tuple[int], np.dtype[np.int64]]
    actions: np.ndarray[tuple[int], np.dtype[np.int64]]
    positions: np.ndarray[tuple[int], np.dtype[np.int64]]
    fresh: int
    visible: int
    scored_from: int

    @property
    def segment(self) -> Segment:
        return Segment(0, self.lease.cached, self.fresh, len(self) - self.fresh, self.visible)

    def __len__(self) -> int:
        return len(self.items)


def strip_cached_tokens(job: Job, lease: Lease, embedded: Callable[[Items], Items], scores_last_row: bool) -> JobRows:
    """The rows that must be computed for a leased request (Algorithm 1, step 3)."""
    tokens = lease.fresh()
    fresh, candidates = len(tokens.items), job.candidates
    if not scores_last_row:
        targets = len(candidates)
        positions = np.arange(lease.cached, lease.length + targets)
        return JobRows(
            job,
            lease,
            items=np.concatenate((embedded(tokens.items), candidates)),
            actions=np.concatenate((tokens.actions, np.full(targets, NO_ACTION))),
            positions=np.minimum(positions, lease.length),
            fresh=fresh,
            visible=lease.length,
            scored_from=fresh,
        )
    # With nothing new the last row's output is gone: it is computed again as a target, which sees the same keys.
    query = lease.last() if len(candidates) and not fresh else None
    return JobRows(
        job,
        lease,
        items=embedded(tokens.items if query is None else query.items),
        actions=(tokens.actions if query is None else query.actions).astype(np.int64),
        positions=np.arange(lease.cached, lease.length) if query is None else np.array([lease.length - 1]),
        fresh=fresh,
        visible=lease.length - 1,
        scored_from=max(0, fresh - 1) if len(candidates) else fresh,
    )


@dataclass(frozen=True)
class Slice:
    """Rows computed together. `parts[i]` is the span of its job's rows that segment i holds."""

    parts: tuple[tuple[JobRows, int, int], ...]

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self.parts)

    def rows(self, device: torch.device) -> Rows:
        """Jagged tensors on the device."""

        def joined(arrays: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device)

        return Rows(
            items=joined([rows.items[a:b] for rows, a, b in self.parts]),
            actions=joined([rows.actions[a:b] for rows, a, b in self.parts]),
            positions=joined([rows.positions[a:b] for rows, a, b in self.parts]),
            segments=tuple(placement.segment for placement in self.placements()),
        )

    def placements(self) -> list[Placement]:
        placements, first_row = [], 0
        for rows, a, b in self.parts:
            placements.append(Placement(rows.segment.part(a, b, first_row), rows.lease.pages))
            first_row += b - a
        return placements

    def keep_outputs(self, outputs: torch.Tensor) -> None:
        """Hand each job those of its output rows that will be scored."""
        first_row = 0
        for rows, a, b in self.parts:
            if b > rows.scored_from:
                rows.job.outputs.append(outputs[first_row + max(a, rows.scored_from) - a : first_row + b - a])
            first_row += b - a


def slices(jobs: Sequence[JobRows], limit: int, waits: Callable[[Lease], bool]) -> Iterator[Slice]:
    """Cut the wave's rows into slices of at most `limit`: in order, so that history is encoded before what sees it.

    A job whose keys are not kept cannot be cut (`CacheView.spans` bounds its work instead) and is a slice of its own if
    it must. Jobs whose keys are still on their way do not share a slice with those that need not wait.
    """
    parts: list[tuple[JobRows, int, int]] = []
    room = limit
    waiting = False
    for rows in jobs:
        done = 0
        turns = parts and not waiting and waits(rows.lease)
        waiting = waiting or bool(turns)
        while done < len(rows):
            whole = rows.lease.pages is None
            if parts and (turns or room <= 0 or (whole and len(rows) > room)):
                turns = False
                yield Slice(tuple(parts))
                parts, room = [], limit
            count = len(rows) if whole else min(len(rows) - done, room)
            parts.append((rows, done, done + count))
            done, room = done + count, room - count
    if parts:
        yield Slice(tuple(parts))
