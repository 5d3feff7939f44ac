"""Streams and events: ordered queues of work, and the points in them that others wait for.

The protocol has CUDA's semantics and no more: work on one stream runs in order; work on two streams runs in any order
unless an event says otherwise. On a CPU a stream is one worker thread, so a missing wait is a bug there too. CUDA's own
streams are in `cuda_streams.py`. There work is *issued* by a thread and *done* by the device later; here both are one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

log = logging.getLogger(__name__)


class WaitTimeout(TimeoutError):
    """An event did not come within its deadline."""


class StreamBroken(RuntimeError):
    """A stream's worker has died or was closed; nothing more on it will ever complete."""


class Event(Protocol):
    """A point in a stream."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_s: float | None) -> None:
        """Block the calling thread until it is reached; None: however long. Raises `WaitTimeout` or `StreamBroken`."""
        ...

    def issued(self, timeout_s: float | None) -> None:
        """As `wait`, but only until all work before it has been issued: what it returns or raises is known."""
        ...


# Called once: with None when all before is done, or with what keeps it from ever being done.
Told: TypeAlias = "Callable[[BaseException | None], None]"


class Stream(Protocol):
    """An ordered queue of work on one device."""

    @property
    def name(self) -> str: ...

    @property
    def broken(self) -> BaseException | None: ...

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` after all that was submitted before. What it raises breaks the stream: handle failure inside.

        Raises `StreamBroken`.
        """
        ...

    def record(self) -> Event:
        """An event reached when everything submitted so far is done. Raises `StreamBroken`."""
        ...

    def wait(self, event: Event) -> None:
        """Hold back what is submitted from here on until the event.

        Inside a work item it holds back the rest of the item, for the stream's limit at most (`WaitTimeout`); between
        items it has no limit, since a stream holds nothing but its order: deadlines are with who needs the results.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Finish what is queued and stop. Raises `WaitTimeout` if that takes longer."""
        ...


class Stamp(Protocol):
    """A moment of a stream's own time."""

    def seconds_until(self, later: Stamp) -> float:
        """Seconds to a later moment of the same stream, once the stream's work has passed it."""
        ...


class CopyStream(Stream, Protocol):
    """A stream with a thread of its own, for work that may block it and that nobody waits for."""

    def stamp(self) -> Stamp:
        """For a work item of this stream: the moment at which the device comes to this point of the item."""
        ...

    def mark(self) -> Event:
        """For a work item of this stream: an event at this point of the item."""
        ...

    def notify(self, told: Told) -> None:
        """Have `told` called when everything submitted so far is done, or can no longer be. Never raises.

        `told` is called by the stream's thread; by the caller's if the stream is broken already. Either way nothing
        that was submitted before runs any more.
        """
        ...


class CpuStamp:
    """Of a stream whose thread does the work itself."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def seconds_until(self, later: Stamp) -> float:
        return later.time - self.time if isinstance(later, CpuStamp) else 0.0


class CpuEvent:
    """Reached, or failed, by the worker thread of the stream it was recorded on."""

    def __init__(self, stream_name: str) -> None:
        self._stream_name = stream_name
        self._flag = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._flag.is_set() and self._error is None

    def wait(self, timeout_s: float | None) -> None:
        self.issued(timeout_s)

    def issued(self, timeout_s: float | None) -> None:
        if not self._flag.wait(timeout_s):
            raise WaitTimeout(f"the {self._stream_name} stream did not reach an event within {timeout_s:g} s")
        if self._error is not None:
            raise StreamBroken(f"the {self._stream_name} stream died before this event: {self._error!r}")

    def reached(self) -> None:
        self._flag.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._flag.set()


class _Notice:
    """A `Told` in the queue, reached or failed like an event."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def reached(self) -> None:
        self._told(None)

    def fail(self, error: BaseException) -> None:
        self._told(error)


class CpuStream:
    """One worker thread that runs closures in order."""

    def __init__(self, name: str, wait_limit_s: float) -> None:
        self.name = name
        self.broken: BaseException | None = None
        self._wait_limit_s = wait_limit_s
        self._work: queue.SimpleQueue[Callable[[], None] | CpuEvent | _Notice | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"mtserve-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._put(work)

    def record(self) -> CpuEvent:
        event = CpuEvent(self.name)
        self._put(event)
        return event

    def wait(self, event: Event) -> None:
        if event.done:
            return
        if threading.current_thread() is self._thread:
            self._follow(event, self._wait_limit_s)
        else:
            self._put(lambda: self._follow(event, None))

    def mark(self) -> CpuEvent:
        event = CpuEvent(self.name)
        event.reached()
        return event

    def stamp(self) -> Stamp:
        return CpuStamp()

    def notify(self, told: Told) -> None:
        try:
            self._put(_Notice(told))
        except StreamBroken as error:
            told(error)

    def close(self, timeout_s: float) -> None:
        with self._gate:
            if self.broken is None:
                self.broken = StreamBroken(f"the {self.name} stream is closed")
                self._work.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WaitTimeout(f"the {self.name} stream did not finish its work within {timeout_s:g} s")

    def _follow(self, event: Event, timeout_s: float | None) -> None:
        event.wait(timeout_s)

    def _put(self, work: Callable[[], None] | CpuEvent | _Notice) -> None:
        # The gate keeps a submission from slipping in behind the last look of a dying worker, to wait there for ever.
        with self._gate:
            if self.broken is not None:
                raise StreamBroken(f"the {self.name} stream takes no more work: {self.broken!r}")
            self._work.put(work)

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                if isinstance(work, (CpuEvent, _Notice)):
                    work.reached()
                else:
                    work()
        except BaseException as error:
            log.exception("the %s stream is broken: its work raised", self.name)
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        left: list[CpuEvent | _Notice] = []
        with self._gate:
            self.broken = error
            while not self._work.empty():
                work = self._work.get()
                if isinstance(work, (CpuEvent, _Notice)):
                    left.append(work)
        for waiting in left:
            waiting.fail(error)
