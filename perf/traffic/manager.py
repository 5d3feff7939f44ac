"""A trace through the cache manager alone: the engine's order of calls without models, tensors or threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mtserve_backend.cache.history import Actions, Items, Tokens
from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Counters, Geometry, Lease, LookUp, OffloadTask, OnloadTask, Visit
from perf.traces.request import Request

NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class ReplayOptions:
    """`transfer_delay`: requests that are served between a transfer's start and its completion; 0: none."""

    batch: int = 8
    tail_flush: bool = True
    transfer_delay: int = 0
    offload_quota_tokens: int = 65_536


class ManagerReplay:
    """Serves requests in batches as `engine.Engine` does: waves of different users, residents first, tails when idle.

    Users' tokens are taken from one long row of numbers: what they are does not matter to the metadata. Requests are
    deltas, which start where the user's last one ended; each must follow on the one before.
    """

    def __init__(self, geometry: Geometry, options: ReplayOptions, longest: int) -> None:
        self.manager = CacheManager(geometry, _whole, options.offload_quota_tokens, NO_LIMIT)
        self.served = 0
        self.options = options
        self._items: Items = np.arange(longest, dtype=np.int64)
        self._actions: Actions = np.zeros(longest, dtype=np.int32)
        self._under_way: deque[tuple[int, OnloadTask | OffloadTask]] = deque()

    def run(self, trace: Iterable[Request]) -> Counters:
        """Serve all of it; the manager's counters since its start."""
        for batch in _batches(trace, self.options.batch):
            self.serve(batch)
        return self.manager.counters

    def serve(self, batch: list[Request]) -> None:
        """One batch, and the idle time after it."""
        pending = deque(batch)
        while pending:
            self._upkeep()
            self._serve_wave(pending)
        self._upkeep()
        if self.options.tail_flush:
            self._start(self.manager.plan_tail_flushes())
            self._take_in()

    def _upkeep(self) -> None:
        self._take_in()
        self._start(self.manager.plan_offloads())

    def _serve_wave(self, pending: deque[Request]) -> None:
        wave: list[Request] = []
        stay: list[Request] = []
        users: set[int] = set()
        while pending:
            request = pending.popleft()
            (stay if request.user in users else wave).append(request)
            users.add(request.user)
        looked_up = [self.manager.look_up(self._visit(request)) for request in wave]
        leases, deferred = self._prepare(looked_up)
        self._start([lease.onload for lease in leases if lease.onload is not None])
        for lease in leases:
            self.manager.commit(lease)
        self._start(self.manager.plan_offloads())
        self.served += len(leases)
        waiting = [request for request, look_up in zip(wave, looked_up, strict=True) if look_up in deferred]
        pending.extendleft(reversed(waiting + stay))

    def _prepare(self, looked_up: list[LookUp]) -> tuple[list[Lease], list[LookUp]]:
        """Users on the device first; who finds no room makes the last of the wave wait. See `Engine._prepare`."""
        waiting = deque(sorted(looked_up, key=lambda look_up: not look_up.record.device_length))
        leases: list[Lease] = []
        deferred: list[LookUp] = []
        while waiting:
            look_up = waiting.popleft()
            lease = self.manager.prepare(look_up)
            if lease is not None:
                leases.append(lease)
            elif waiting:
                deferred.append(self._forgo(waiting.pop()))
                waiting.appendleft(look_up)
            elif leases:
                deferred.append(self._forgo(look_up))
            elif self._under_way:
                self._complete(self._under_way.popleft()[1])
                waiting.append(look_up)
            else:
                leases.append(self.manager.prepare_uncached(look_up))
        return leases, deferred

    def _forgo(self, look_up: LookUp) -> LookUp:
        self.manager.forgo(look_up)
        return look_up

    def _visit(self, request: Request) -> Visit:
        known, stop = request.known, request.history_length
        return Visit(request.user, Tokens(known, self._items[known:stop], self._actions[known:stop]))

    # --- transfers ---------------------------------------------------------------------------------------------------

    def _start(self, tasks: Iterable[OnloadTask | OffloadTask]) -> None:
        """A load that an earlier wave started is not started again."""
        known = {id(task) for _, task in self._under_way}
        due = self.served + self.options.transfer_delay
        self._under_way.extend((due, task) for task in tasks if id(task) not in known)

    def _take_in(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.served:
            self._complete(self._under_way.popleft()[1])

    def _complete(self, task: OnloadTask | OffloadTask) -> None:
        if isinstance(task, OnloadTask):
            self.manager.onload_done(task, failed=False)
        else:
            self.manager.offload_done(task, failed=False)


def _whole(length: int) -> int:
    """The window's start: histories are encoded whole."""
    del length
    return 0


def _batches(trace: Iterable[Request], size: int) -> Iterator[list[Request]]:
    requests = iter(trace)
    while batch := list(islice(requests, size)):
        yield batch
