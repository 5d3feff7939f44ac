"""A server's metrics port, read as Prometheus reads it."""

import http.client
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from mtserve_backend.embedded.errors import ServerError

_TIMEOUT_S = 10.0
# Our histograms are counters to Triton, and the parser names every counter `..._total` (those of Triton too, which are
# `nv_inference_...` on the wire).
_PART = re.compile(r"(_bucket|_sum|_count)_total$")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """The value of every series, by its name and its sorted labels."""

    samples: Mapping[tuple[str, Labels], float]

    def value(self, name: str, model: str, version: str = "1", **labels: str) -> float:
        """Of one series of ours; raises KeyError where there is none."""
        return self.samples[name, tuple(sorted({"model": model, "version": version, **labels}.items()))]

    def by(self, name: str, label: str, model: str) -> dict[str, float]:
        """Of each value of a label, over all versions of a model."""
        found: dict[str, float] = {}
        for (sample, pairs), number in self.samples.items():
            labels = dict(pairs)
            if sample == name and labels.get("model") == model:
                found[labels[label]] = found.get(labels[label], 0.0) + number
        return found

    def total(self, name: str, model: str) -> float:
        """Over all series of a model; 0 where there is none."""
        return sum(
            number for (sample, pairs), number in self.samples.items()
            if sample == name and dict(pairs).get("model") == model
        )  # fmt: skip

    def models(self) -> list[str]:
        """Names of the models that publish our metrics."""
        return sorted({dict(pairs)["model"] for name, pairs in self.samples if name == "mtserve_engine_up"})


def scrape(url: str) -> Scrape:
    """Raises ServerError, saying what is wrong with the address."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(
            f"{url} does not answer ({error}): name the server's metrics port, as in localhost:8002."
        ) from error
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        raise ServerError(f"{url} does not answer with metrics: is it the server's metrics port (8002)?") from error
    return Scrape(
        {
            (_PART.sub(r"\1", sample.name), tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }
    )
