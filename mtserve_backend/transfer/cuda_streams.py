"""CUDA's streams and events behind the protocol of `streams.py`.

Two kinds. `CudaStream` issues in the calling thread: the compute stream, whose launches nobody should delay.
`HostedCudaStream` issues in a thread of its own, which may therefore wait for the host: the copying streams. Neither
ever touches CUDA's default stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from mtserve_backend.transfer.streams import CpuEvent, CpuStream, Event, Stamp, StreamBroken, Told, WaitTimeout

log = logging.getLogger(__name__)

# Between two looks at an event that somebody waits for with a deadline; CUDA has no wait with one.
POLL_S = 50e-6


class CudaEvent(CpuEvent):
    """Issued when its thread has come so far, done when the device has."""

    def __init__(self, stream_name: str, stream: torch.cuda.Stream) -> None:
        super().__init__(stream_name)
        self._stream = stream
        # Whoever waits without a deadline sleeps, and leaves the cores to those that compute.
        self._cuda = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @property
    def done(self) -> bool:
        return super().done and bool(self._cuda.query())  # type: ignore[no-untyped-call]

    def wait(self, timeout_s: float | None) -> None:
        begin = time.monotonic()
        self.issued(timeout_s)
        try:
            if timeout_s is None:
                self._cuda.synchronize()
                return
            while not self._cuda.query():  # type: ignore[no-untyped-call]
                if time.monotonic() - begin > timeout_s:
                    raise WaitTimeout(f"the {self._stream_name} stream did not reach an event within {timeout_s:g} s")
                time.sleep(POLL_S)
        except RuntimeError as error:
            if isinstance(error, StreamBroken):
                raise
            raise StreamBroken(f"the {self._stream_name} stream's device failed: {error}") from error

    def reached(self) -> None:
        self._cuda.record(self._stream)
        super().reached()

    def hold_back(self, stream: torch.cuda.Stream) -> None:
        """Have the device run what comes next on `stream` after this event, which must be issued."""
        stream.wait_event(self._cuda)


class CudaStamp:
    """Of the device's own time."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def seconds_until(self, later: Stamp) -> float:
        return float(self.event.elapsed_time(later.event)) / 1e3 if isinstance(later, CudaStamp) else 0.0


def _follow(stream: torch.cuda.Stream, event: Event, timeout_s: float | None) -> None:
    """Order `stream` after `event`. The caller waits until it is issued; an event of the host's is then done."""
    event.issued(timeout_s)
    if isinstance(event, CudaEvent):
        event.hold_back(stream)


class CudaStream:
    """Work is issued where `submit` is called. What it raises there breaks the stream."""

    def __init__(self, name: str, device: torch.device, wait_limit_s: float) -> None:
        self.name = name
        self.broken: BaseException | None = None
        self._wait_limit_s = wait_limit_s
        # What a user waits for goes first where the device has to choose.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def submit(self, work: Callable[[], None]) -> None:
        self._check()
        try:
            with torch.cuda.stream(self._stream):
                work()
        except BaseException as error:
            log.exception("the %s stream is broken: its work raised", self.name)
            self.broken = error
            raise StreamBroken(f"the {self.name} stream's work raised: {error!r}") from error

    def record(self) -> CudaEvent:
        self._check()
        event = CudaEvent(self.name, self._stream)
        event.reached()
        return event

    def wait(self, event: Event) -> None:
        self._check()
        _follow(self._stream, event, self._wait_limit_s)

    def close(self, timeout_s: float) -> None:
        if self.broken is None:
            self.broken = StreamBroken(f"the {self.name} stream is closed")
        deadline = time.monotonic() + timeout_s
        while not self._stream.query():
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the {self.name} stream did not finish its work within {timeout_s:g} s")
            time.sleep(POLL_S)

    def _check(self) -> None:
        if self.broken is not None:
            raise StreamBroken(f"the {self.name} stream takes no more work: {self.broken!r}")


class HostedCudaStream(CpuStream):
    """A thread that issues, in order, and waits for the host where it must; the device follows."""

    def __init__(self, name: str, device: torch.device, wait_limit_s: float) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device
        super().__init__(name, wait_limit_s)

    def record(self) -> CudaEvent:
        event = CudaEvent(self.name, self._stream)
        self._put(event)
        return event

    def mark(self) -> CudaEvent:
        event = CudaEvent(self.name, self._stream)
        event.reached()
        return event

    def stamp(self) -> CudaStamp:
        return CudaStamp(self._stream)

    def notify(self, told: Told) -> None:
        def done_or_failed(error: BaseException | None) -> None:
            # In order on this stream: nothing behind it is held back that could run before.
            try:
                self._stream.synchronize()
            except RuntimeError as failure:
                error = error or failure
            told(error)

        super().notify(done_or_failed)

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        super().close(timeout_s)
        while not self._stream.query():
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the {self.name} stream did not finish its work within {timeout_s:g} s")
            time.sleep(POLL_S)

    def _follow(self, event: Event, timeout_s: float | None) -> None:
        _follow(self._stream, event, timeout_s)

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(self._stream), torch.inference_mode():
            super()._run()
