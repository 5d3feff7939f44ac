"""Triton's metrics port as a sink: one family a metric, labelled with the model's name and version."""

from __future__ import annotations

import logging
from typing import Any

import triton_python_backend_utils as pb_utils

from mtserve_backend.metrics.families import Family
from mtserve_backend.metrics.meter import Meter
from mtserve_backend.metrics.publisher import Publisher, Series

log = logging.getLogger(__name__)


class TritonSink:
    """Families and series are kept for as long as the model: Triton drops what Python no longer refers to."""

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, str], Any] = {}

    def series(self, family: Family, label_value: str) -> Series:
        key = family.name, label_value
        if key not in self._series:
            labels = {**self._labels, family.label: label_value} if family.label else self._labels
            self._series[key] = self._family(family).Metric(labels=labels)
        found: Series = self._series[key]
        return found

    def _family(self, family: Family) -> Any:
        if family.name not in self._families:
            kind = getattr(pb_utils.MetricFamily, family.kind.upper())
            self._families[family.name] = pb_utils.MetricFamily(name=family.name, description=family.help, kind=kind)
        return self._families[family.name]


def publish(meter: Meter, model: str, version: str) -> Publisher | None:
    """Start publishing. None where the server has no metrics (`--allow-metrics=false`), which the log says."""
    try:
        publisher = Publisher(meter, TritonSink(model, version))
    except (pb_utils.TritonModelException, AttributeError) as error:
        log.warning("no metrics are published: %s", error)
        return None
    publisher.start()
    return publisher
