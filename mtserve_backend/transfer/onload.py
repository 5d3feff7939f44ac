"""Host to device, layer by layer; then, behind the compute, from the onload buffer to primary pages.

Sources: MTServe sections 4.2 and 4.4. The load of layer l is one event, and all that attention in layer l waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mtserve_backend.cache.records import OnloadTask
from mtserve_backend.kernels import copies
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.paths import HostPath
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.stopwatch import Stopwatch
from mtserve_backend.transfer.streams import CopyStream, Event, StreamBroken

log = logging.getLogger(__name__)


class OnloadFailed(RuntimeError):
    """Some users' keys did not arrive; `tasks` are theirs. Nothing that was computed from them may be used."""

    def __init__(self, tasks: Sequence[OnloadTask]) -> None:
        super().__init__(f"{len(tasks)} onload tasks failed or did not finish in time")
        self.tasks = tuple(tasks)


@dataclass(eq=False)
class OnloadHandle:
    """One task on its way. `failed` is written by the copying threads before the event that follows it.

    `watch` times the load, and is shared by all that were loaded together.
    """

    task: OnloadTask
    watch: Stopwatch
    layers: list[Event] = field(default_factory=list)
    failed: bool = False
    scattering: bool = False

    @property
    def arrived(self) -> bool:
        """Whether every layer is there."""
        return bool(self.layers) and self.layers[-1].done and not self.failed


class Onloader:
    """Submits loads to the onload stream and scatters to the scatter stream.

    `load_seconds` and `scatter_seconds` are how long they were at work, up to what was reported last.
    """

    def __init__(
        self, pools: Pools, path: HostPath, onload: CopyStream, scatter: CopyStream, completions: CompletionQueue
    ) -> None:
        self._device, self._host = pools.device.unbind(0), pools.host.unbind(1)
        self._path = path
        self._onload = onload
        self._scatter = scatter
        self._completions = completions
        self.load_seconds = self.scatter_seconds = 0.0

    def load(self, tasks: Sequence[OnloadTask], after: Event | None) -> list[OnloadHandle]:
        """Start loading: layer 0 of every task first, then layer 1, ...; the tasks share an event a layer.

        `after` is the last use of the pages loaded into. Never raises: a load that cannot be started is failed.
        """
        watch = Stopwatch(self._onload)
        handles = [OnloadHandle(task, watch) for task in tasks]
        try:
            if after is not None:
                self._onload.wait(after)
            for layer in range(len(self._device)):
                self._onload.submit(partial(self._load_layer, handles, layer))
                arrived = self._onload.record()
                for handle in handles:
                    handle.layers.append(arrived)
        except StreamBroken:
            for handle in handles:
                handle.failed = True
        return handles

    def scatter(self, *handles: OnloadHandle) -> None:
        """Start moving the staged pages to primary ones, each layer as it arrives; then report completion."""
        watch = Stopwatch(self._scatter)
        fresh = [handle for handle in handles if not handle.scattering]
        for handle in fresh:
            handle.scattering = True
        try:
            for layer in range(len(self._device) if fresh else 0):
                self._scatter_arrived([handle for handle in fresh if layer < len(handle.layers)], layer, watch)
        except StreamBroken:
            for handle in fresh:
                handle.failed = True
        if fresh:
            self._scatter.notify(partial(self._scattered, fresh, watch))

    def _load_layer(self, handles: Sequence[OnloadHandle], layer: int) -> None:
        with handles[0].watch.lap():
            for handle in handles:
                self._guarded(handle, partial(self._load_task, handle.task, layer))

    def _load_task(self, task: OnloadTask, layer: int) -> None:
        self._path.load(self._host[layer], self._device[layer], task.runs, self._onload)

    def _scatter_arrived(self, handles: Sequence[OnloadHandle], layer: int, watch: Stopwatch) -> None:
        for arrived in dict.fromkeys(handle.layers[layer] for handle in handles):
            self._scatter.wait(arrived)
        staged = [handle for handle in handles if len(handle.task.staged)]
        if staged:
            self._scatter.submit(partial(self._scatter_layer, staged, layer, watch))

    def _scatter_layer(self, handles: Sequence[OnloadHandle], layer: int, watch: Stopwatch) -> None:
        with watch.lap():
            for handle in handles:
                task = handle.task
                self._guarded(handle, partial(copies.scatter_pages, self._device[layer], task.staged, task.primary))

    def _scattered(self, handles: Sequence[OnloadHandle], watch: Stopwatch, error: BaseException | None) -> None:
        """The scatter stream is through, which waited for the loads; if it died, the loads may still be at work."""
        if error is None:
            self.scatter_seconds += watch.take()
            self._report(handles, None)
        else:
            self._onload.notify(lambda _: self._report(handles, error))

    def _report(self, handles: Sequence[OnloadHandle], error: BaseException | None) -> None:
        self.load_seconds += sum(handle.watch.take() for handle in handles)
        for handle in handles:
            self._completions.put(Completion(handle.task, handle.failed or error is not None))

    @staticmethod
    def _guarded(handle: OnloadHandle, work: Callable[[], None]) -> None:
        if handle.failed:
            return
        try:
            work()
        except Exception:
            log.exception("an onload failed; the user is recomputed")
            handle.failed = True
