"""Drive targets: side by side in turns, in a closed loop, in an open loop. What was answered is handed on at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perf.traffic.dealer import Dealer
from perf.traffic.record import Book, Record
from perf.traffic.target import Served, Target
from perf.visits import Visit

# An open loop has at most so many batches under way: a server that falls further behind is overloaded beyond measure.
OPEN_LOOP_THREADS = 64

Keep = Callable[[Record], None]


@dataclass(frozen=True)
class Turn:
    """One target's answers to one batch."""

    number: int
    name: str
    batch: list[Visit]
    served: Served


def interleaved(
    targets: Mapping[str, Target],
    dealer: Dealer,
    size: int = 1,
    count: int | None = None,
    asked: Callable[[int, str], bool] = lambda number, name: True,
    top_k: int | None = None,
) -> Iterator[Turn]:
    """`count` batches (None: all) to every target, one at a time; each target is first as often as the others.

    `asked(number, name)`: whether a target gets batch `number`; for those that keep nothing and take long.
    """
    names = list(targets)
    number = 0
    while number != count and (batch := dealer.take(size)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if asked(number, name):
                served = targets[name].serve(batch, top_k)
                targets[name].settle()
                yield Turn(number, name, batch, served)
        dealer.done(batch)
        number += 1


def warm(targets: Mapping[str, Target], visits: Sequence[Visit], on_visit: Callable[[], None] = lambda: None) -> None:
    """One visit at a time to each of those targets; answers are not looked at."""
    for visit in visits:
        for target in targets.values():
            target.serve([visit])
            target.settle()
            on_visit()


class Replay:
    """One target's replay, in threads. Ctrl-C in `run` lets what is under way end, and is raised again then."""

    def __init__(self, name: str, target: Target, keep: Keep) -> None:
        """`keep` is called with each record, by one thread at a time."""
        self._name, self._target, self._keep = name, target, keep
        self._lock = threading.Lock()
        self._book = Book()
        self._start = 0.0
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def closed(self, visits: Iterable[Visit], size: int, concurrency: int) -> None:
        """`concurrency` batches under way, each followed by the next."""
        dealer = Dealer(visits)
        self._run(dealer, size, concurrency, lambda sent, batch: [sent] * len(batch))

    def open(self, visits: Iterable[Visit], size: int) -> None:
        """Every visit when it is due, whatever is under way; a batch, when its last visit is."""
        dealer = Dealer(visits, clock=self._clock)
        self._run(dealer, size, OPEN_LOOP_THREADS, lambda sent, batch: [visit.time for visit in batch])

    def _clock(self) -> float:
        return time.perf_counter() - self._start

    def _run(
        self, dealer: Dealer, size: int, threads: int, due: Callable[[float, Sequence[Visit]], list[float]]
    ) -> None:
        self._start = time.perf_counter()
        workers = [threading.Thread(target=self._work, args=(dealer, size, due), daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        finally:
            dealer.end()
            for worker in workers:
                worker.join()
        if not self._failures.empty():
            raise self._failures.get()

    def _work(self, dealer: Dealer, size: int, due: Callable[[float, Sequence[Visit]], list[float]]) -> None:
        try:
            while batch := dealer.take(size):
                sent = self._clock()
                served = self._target.serve(batch)
                dealer.done(batch)
                self._record(batch, sent, due(sent, batch), served)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._failures.put(error)
            dealer.end()

    def _record(self, batch: Sequence[Visit], sent: float, due: Sequence[float], served: Served) -> None:
        with self._lock:
            for record in self._book.records(self._name, batch, served, sent, due):
                self._keep(record)
