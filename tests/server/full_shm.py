"""`python -m tests.server.full_shm`: a server whose /dev/shm fills up, told as JSON. Only for a mount namespace."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

from tests.engine import worlds
from tests.engine.worlds import History
from tests.server.lively import CANDIDATES, MODEL, assert_scores, serving, visit
from tests.server.raw import Raw, RawRequest, raw_request
from tests.server.test_embedded import children

SHM = Path("/dev/shm")
PAGE = 4096


def large(user: int, history: History) -> RawRequest:
    """More than the region's first MiB."""
    return raw_request(user, history.items, history.actions, np.tile(CANDIDATES, 200_000 // len(CANDIDATES)))


def main() -> None:
    if os.stat(SHM).st_dev == os.stat("/dev").st_dev or os.statvfs(SHM).f_blocks * os.statvfs(SHM).f_frsize > 64 << 20:
        raise SystemExit("run this in a mount namespace with a small /dev/shm: it fills it up")
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights"
        weights.mkdir()
        model = worlds.lively_model(weights)
        history = worlds.random_history(np.random.default_rng(0), 40)
        with (
            serving(Path(scratch) / "repository", weights, {"max_candidates": "1000000"}) as server,
            closing(Raw("grpc", server)) as raw,
        ):
            before = children(server.pid)
            assert_scores(raw.send(MODEL, visit(1, history)), model, history)
            space = os.statvfs(SHM)
            filler = SHM / "filler"
            filler.write_bytes(bytes(space.f_bavail * space.f_frsize - 4 * PAGE))
            try:
                raw.send(MODEL, large(2, history))
            except InferenceServerException as error:
                told["large request"] = str(error)
            told["small request, still full"] = assert_scores(raw.send(MODEL, visit(1, history)), model, history)
            filler.unlink()
            told["large request, room again"] = len(raw.send(MODEL, large(3, history))["SCORES"][0])
            told["small request"] = assert_scores(raw.send(MODEL, visit(1, history)), model, history)
            told["same stub"] = children(server.pid) == before
        told["left behind"] = os.listdir(SHM)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
