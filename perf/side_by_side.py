"""One real server with the same model three times: recompute, device, hierarchical."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mtserve_client import RankingClient

from mtserve_backend.embedded import EmbeddedServer
from mtserve_backend.repository import write_model
from perf.replay import MODES

# A long history recomputed on a busy machine takes its time, and is measured all the same.
PATIENCE_S = 600


@contextmanager
def side_by_side(weights: Path, parameters: Mapping[str, str]) -> Iterator[dict[str, RankingClient]]:
    """A client per mode, while the server runs. The knobs besides `cache_mode` are the same for all three."""
    with ExitStack() as stack:
        repository = stack.enter_context(tempfile.TemporaryDirectory(prefix="mtserve-demo-"))
        for mode in MODES:
            write_model(
                repository, mode, weights, {**parameters, "cache_mode": mode, "request_timeout_s": str(PATIENCE_S)}
            )
        server = stack.enter_context(EmbeddedServer(repository=repository))
        yield {
            mode: stack.enter_context(RankingClient(server.grpc_url, model=mode, timeout_s=PATIENCE_S))
            for mode in MODES
        }
