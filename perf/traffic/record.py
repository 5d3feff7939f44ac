"""What is kept of a request: where its tokens came from, how long it took, and what of it was waiting."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtserve_backend.steps import STEPS
from perf.stats import Spread, percentile, ratio
from perf.traffic.target import Served, Steps
from perf.visits import Visit

COLUMNS = (
    "paradigm", "batch", "size", "user", "length", "new", "candidates", "sent_s", "latency_ms", "queue_ms",
    "device", "host", "recomputed", "error", "waited_ms", *(f"step {name} ms" for name in STEPS),
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One request. `user` is a number in the order of coming, not the ID.

    Seconds: `sent_s` since the replay's start; `latency_s` from being due (open loop) or sent (closed loop) to the
    answer; `queue_s` the part of it before its computation began, as far as that is known. `steps` are its batch's.
    """

    paradigm: str
    batch: int
    size: int
    user: int
    length: int
    new: int
    candidates: int
    sent_s: float
    latency_s: float
    queue_s: float
    device: int = 0
    host: int = 0
    recomputed: int = 0
    error: str = ""
    steps: Steps | None = None

    def row(self) -> list[object]:
        times = [f"{self.sent_s:.6f}", f"{1e3 * self.latency_s:.3f}", f"{1e3 * self.queue_s:.3f}"]
        head = [self.paradigm, self.batch, self.size, self.user, self.length, self.new, self.candidates, *times]
        tail = [self.device, self.host, self.recomputed, self.error]
        steps = [self.steps.waited_ms, *self.steps.ms] if self.steps else [None] * (1 + len(STEPS))
        return [*head, *tail, *(None if value is None else f"{value:.3f}" for value in steps)]


class Book:
    """Numbers users and batches as they come, and makes records of answers."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._batches: Counter[str] = Counter()

    def records(
        self, name: str, batch: Sequence[Visit], served: Served, sent: float = 0.0, due: Sequence[float] | None = None
    ) -> Iterator[Record]:
        """Of one batch of the paradigm `name`. `due`: when each visit should have been sent; None: when it was."""
        number = self._batches[name]
        self._batches[name] += 1
        for index, (visit, answer) in enumerate(zip(batch, served.answers, strict=True)):
            late = sent - due[index] if due else 0.0
            yield Record(
                paradigm=name,
                batch=number,
                size=len(batch),
                user=self._users.setdefault(visit.user, len(self._users) + 1),
                length=len(visit.items),
                new=visit.new,
                candidates=len(visit.candidates),
                sent_s=sent,
                latency_s=late + served.seconds[index],
                queue_s=late + served.queue_s,
                device=answer.device,
                host=answer.host,
                recomputed=answer.recomputed,
                error=answer.error,
                steps=served.steps,
            )


@dataclass(frozen=True)
class Summary:
    """Of one paradigm's answered requests. `latency`: of batches, in seconds: of a batch's slowest request."""

    requests: int
    failed: int
    latency: Spread
    p95_s: float
    p99_s: float
    queue_s: float
    device_hits: float
    total_hits: float
    seconds: tuple[float, ...] = field(repr=False)


def batch_seconds(records: Iterable[Record]) -> dict[int, float]:
    """By batch, in order: its slowest request's latency. Batches with a failure are left out."""
    found: dict[int, float] = {}
    failed: set[int] = set()
    for record in records:
        found[record.batch] = max(found.get(record.batch, 0.0), record.latency_s)
        if record.error:
            failed.add(record.batch)
    return {batch: seconds for batch, seconds in found.items() if batch not in failed}


def summarize(records: Sequence[Record]) -> Summary:
    """Hit ratios are history tokens taken from the cache over all history tokens, new ones included."""
    good = [record for record in records if not record.error]
    seconds = tuple(batch_seconds(records).values())
    tokens = sum(record.length for record in good)
    return Summary(
        requests=len(good),
        failed=len(records) - len(good),
        latency=Spread.of(seconds),
        p95_s=percentile(seconds, 95),
        p99_s=percentile(seconds, 99),
        queue_s=percentile([record.queue_s for record in good], 50),
        device_hits=ratio(sum(record.device for record in good), tokens),
        total_hits=ratio(sum(record.device + record.host for record in good), tokens),
        seconds=seconds,
    )


def by_paradigm(records: Sequence[Record], paradigms: Sequence[str]) -> Mapping[str, Summary]:
    """Only those that answered something, in the order given."""
    split = {name: [record for record in records if record.paradigm == name] for name in paradigms}
    return {name: summarize(own) for name, own in split.items() if own}


class RecordFile:
    """A CSV file, a line a request, written as they come: a killed replay has lost nothing. Raises OSError."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def append(self, record: Record) -> None:
        self._writer.writerow(record.row())
        self._file.flush()

    def close(self) -> None:
        self._file.close()
