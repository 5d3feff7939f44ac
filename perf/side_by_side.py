"""One real server with the same model three times: recompute, device, hierarchical."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mtserve_client import RankingClient

from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.repository import write_model
from perf.replay import MODES

# How long an OpenMP thread of a model spins while it waits for the others. By default longer than a time slice; where
# something else keeps one of the cores busy, two threads of a model then share a core, and the one that has nothing to
# do keeps the other from working. Measured on two cores, one of them taken, 1,000 tokens of the paper's model: 5.0 s by
# default, 0.8 s with this; with both cores free 0.23 and 0.25 s.
SPIN = ("GOMP_SPINCOUNT", "10000")


@contextmanager
def side_by_side(weights: Path, parameters: Mapping[str, str]) -> Iterator[dict[str, RankingClient]]:
    """A client per mode, while the server runs. The knobs besides `cache_mode` are the same for all three."""
    os.environ.setdefault(*SPIN)
    with ExitStack() as stack:
        repository = stack.enter_context(tempfile.TemporaryDirectory(prefix="mtserve-demo-"))
        for mode in MODES:
            write_model(repository, mode, weights, {**parameters, "cache_mode": mode})
        server = stack.enter_context(EmbeddedServer(repository=repository))
        yield {mode: stack.enter_context(RankingClient(server.grpc_url, model=mode)) for mode in MODES}
