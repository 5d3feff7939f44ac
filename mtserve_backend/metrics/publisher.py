"""Tells a sink what has changed, on a thread of its own: each change is a call to another process."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from mtserve_backend.metrics.families import ALL, Family
from mtserve_backend.metrics.meter import Meter
from mtserve_backend.metrics.state import State

log = logging.getLogger(__name__)

PUBLISH_EVERY_S = 0.5
# Gauges are told again so often though they have not changed: a model that is loaded anew shares its series with its
# predecessor, which sets them to zero when it goes.
REPEAT_GAUGES_S = 5.0
STOP_TIMEOUT_S = 2.0


class Series(Protocol):
    """One series of a sink."""

    def increment(self, amount: float) -> None: ...
    def set(self, value: float) -> None: ...


class Sink(Protocol):
    """Where series live."""

    def series(self, family: Family, label_value: str) -> Series:
        """A series of this model; there already if it was asked for before."""
        ...


class Publisher:
    """Publishes a meter's state whenever it has changed, until stopped. A sink that fails is logged, once."""

    def __init__(self, meter: Meter, sink: Sink) -> None:
        """All series are made here, at zero: a rate needs a beginning."""
        self._meter = meter
        self._sink = sink  # kept: a server drops the series of a sink that is gone
        self._told: dict[tuple[str, str], float] = {}
        self._series: dict[tuple[str, str], Series] = {}
        for family in ALL:
            for label_value, _ in family.read(meter.state()):
                self._series[family.name, label_value] = sink.series(family, label_value)
        self._repeat_from = 0.0
        self._failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mtserve-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell the last totals, and that nothing is there any more. For after the engine's end."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("the metrics' thread did not end within %g s and is left behind", STOP_TIMEOUT_S)
            return
        self._guarded(self._meter.last_state(), ending=True)

    def publish(self, state: State, ending: bool = False) -> None:
        """Counters by what they grew, gauges that changed; with `ending` all gauges as zero."""
        repeat = time.monotonic() >= self._repeat_from
        if repeat:
            self._repeat_from = time.monotonic() + REPEAT_GAUGES_S
        for family in ALL:
            for label_value, value in family.read(state):
                key = family.name, label_value
                if family.kind == "gauge":
                    self._tell_gauge(key, 0.0 if ending else value, repeat or ending)
                else:
                    self._tell_counter(key, value)

    def _tell_counter(self, key: tuple[str, str], value: float) -> None:
        grown = value - self._told.get(key, 0.0)
        if grown > 0:
            self._series[key].increment(grown)
            self._told[key] = value

    def _tell_gauge(self, key: tuple[str, str], value: float, repeat: bool) -> None:
        if repeat or value != self._told.get(key):
            self._series[key].set(value)
            self._told[key] = value

    def _run(self) -> None:
        last: State | None = None
        while not self._stopping.wait(PUBLISH_EVERY_S):
            state = self._meter.state()
            same = last is not None and state.engine is last.engine and state.requests == last.requests
            if not same or time.monotonic() >= self._repeat_from:
                last = state
                self._guarded(state)

    def _guarded(self, state: State, ending: bool = False) -> None:
        try:
            self.publish(state, ending)
        except Exception:
            if not self._failed:
                log.exception("metrics could not be published; requests are answered all the same")
            self._failed = True
