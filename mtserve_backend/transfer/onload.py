"""Host to device, layer by layer; then, behind the compute, from the onload buffer to primary pages.

Sources: MTServe sections 4.2 and 4.4. The load of layer l is one event, and all that attention in layer l waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from mtserve_backend.cache.records import OnloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.paths import Guard, HostPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Event, Stream, StreamBroken

log = logging.getLogger(__name__)


class OnloadFailed(RuntimeError):
    """Some users' keys did not arrive; `tasks` are theirs. Nothing that was computed from them may be used."""

    def __init__(self, tasks: Sequence[OnloadTask]) -> None:
        super().__init__(f"{len(tasks)} onload tasks failed or did not finish in time")
        self.tasks = tuple(tasks)


@dataclass(eq=False)
class OnloadHandle:
    """One task on its way. `failed` is written by the copying threads before the event that follows it."""

    task: OnloadTask
    layers: list[Event] = field(default_factory=list)
    failed: bool = False
    scattering: bool = False

    @property
    def arrived(self) -> bool:
        """Whether every layer is there."""
        return bool(self.layers) and self.layers[-1].done and not self.failed


class Onloader:
    """Submits loads to the onload stream and scatters to the scatter stream."""

    def __init__(
        self, pools: Pools, path: HostPath, onload: Stream, scatter: Stream, completions: CompletionQueue
    ) -> None:
        self._device, self._host = pools.device.unbind(0), pools.host.unbind(1)
        self._path = path
        self._onload = onload
        self._scatter = scatter
        self._completions = completions

    def load(self, tasks: Sequence[OnloadTask], after: Event | None) -> list[OnloadHandle]:
        """Start loading: layer 0 of every task first, then layer 1, ...; the tasks share an event a layer.

        `after` is the last use of the pages loaded into. Never raises: a load that cannot be started is failed.
        """
        handles = [OnloadHandle(task) for task in tasks]
        try:
            if after is not None:
                self._onload.wait(after)
            guards = [partial(self._guarded, handle) for handle in handles]
            for layer in range(len(self._device)):
                for task, guard in zip(tasks, guards, strict=True):
                    self._load_layer(task, layer, guard)
                arrived = self._onload.record()
                for handle in handles:
                    handle.layers.append(arrived)
        except StreamBroken:
            self._give_up(handles)
        return handles

    def scatter(self, *handles: OnloadHandle) -> None:
        """Start moving the staged pages to primary ones, each layer as it arrives; then report completion."""
        fresh = [handle for handle in handles if not handle.scattering]
        for handle in fresh:
            handle.scattering = True
        try:
            for layer in range(len(self._device) if fresh else 0):
                self._scatter_arrived([handle for handle in fresh if layer < len(handle.layers)], layer)
            for handle in fresh:
                self._scatter.submit(partial(self._report, handle))
        except StreamBroken:
            for handle in fresh:
                handle.failed = True

    def _scatter_arrived(self, handles: Sequence[OnloadHandle], layer: int) -> None:
        for arrived in dict.fromkeys(handle.layers[layer] for handle in handles):
            self._scatter.wait(arrived)
        staged = [handle for handle in handles if len(handle.task.staged)]

        def work() -> None:
            for handle in staged:
                self._guarded(handle, partial(self._scatter_layer, handle.task, layer))()

        if staged:
            self._scatter.submit(work)

    def _report(self, handle: OnloadHandle) -> None:
        self._completions.put(Completion(handle.task, handle.failed))

    def _give_up(self, handles: Sequence[OnloadHandle]) -> None:
        """A copying thread is gone, but what was submitted before may be at work: the report must wait for its end."""
        for handle in handles:
            handle.failed = True
        with suppress(StreamBroken):
            end = self._onload.record()
            for handle in handles:
                handle.layers.append(end)

    def _load_layer(self, task: OnloadTask, layer: int, guard: Guard) -> None:
        self._path.load(self._host[layer], self._device[layer], task.runs, self._onload, guard)

    def _scatter_layer(self, task: OnloadTask, layer: int) -> None:
        copies.scatter_pages(self._device[layer], task.staged, task.primary)

    @staticmethod
    def _guarded(handle: OnloadHandle, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            if handle.failed:
                return
            try:
                work()
            except Exception:
                log.exception("an onload failed; the user is recomputed")
                handle.failed = True

        return run
