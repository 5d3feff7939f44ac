"""The metrics port, read as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, labels: Mapping[str, str] | None = None, model: str = "hierarchical") -> float:
    """Of one series of ours."""
    wanted = {"model": model, "version": "1", **(labels or {})}
    return samples[name, tuple(sorted(wanted.items()))]


def by(samples: Samples, name: str, label: str, model: str = "hierarchical") -> dict[str, float]:
    """Of each value of a label."""
    found = {}
    for (sample, pairs), number in samples.items():
        labels = dict(pairs)
        if sample == name and labels["model"] == model:
            found[labels[label]] = number
    return found
