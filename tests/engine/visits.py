"""Random visits of users whose histories grow and are rewritten; every score is held against a dense recompute."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st

from mtserve_backend.cache.history import Tokens
from mtserve_backend.ranking import RankAnswer, RankRequest
from tests.engine import worlds
from tests.engine.worlds import History

_FOLDERS = {scoring: Path(tempfile.mkdtemp(prefix="mtserve_lively_")) for scoring in ("target", "next_item")}
_MODELS = {scoring: worlds.lively_model(folder, scoring) for scoring, folder in _FOLDERS.items()}

NOBODY = np.empty(0, dtype=np.int64)
NOTHING = Tokens(0, NOBODY, NOBODY.astype(np.int32))

geometries = st.fixed_dictionaries(
    {
        "page_tokens": st.sampled_from([1, 3, 4, 16]),
        "chunk_pages": st.sampled_from([1, 2, 5]),
        "device_pages": st.integers(1, 60),
        "onload_pages": st.integers(0, 12),
        "host_chunks": st.integers(1, 30),
        "pass_tokens": st.sampled_from([16, 40, 1000]),
        "cache_mode": st.sampled_from(["hierarchical", "hierarchical", "device", "recompute"]),
        "host_memory": st.sampled_from(["pinned", "pageable"]),
        "zero_on_free": st.booleans(),
    }
)


def rewrite(rng: np.random.Generator, history: History, histories: list[History]) -> History:
    """What real clients do to histories: mostly grow, sometimes anything else."""
    kind = rng.choice(["grow", "same", "delete", "replace", "reorder", "shorten", "swap"], p=[0.6, 0.1] + [0.06] * 5)
    items, actions = history.items.copy(), history.actions.copy()
    if kind == "grow" or not len(history):
        more = worlds.random_history(rng, int(rng.integers(0, 25)))
        items, actions = np.concatenate((items, more.items)), np.concatenate((actions, more.actions))
    elif kind == "delete":
        at = int(rng.integers(len(items)))
        items, actions = np.delete(items, at), np.delete(actions, at)
    elif kind == "replace":
        items[rng.integers(len(items))] = rng.integers(worlds.ITEMS)
    elif kind == "reorder":
        order = np.arange(len(items))
        at = rng.integers(len(items), size=2)
        order[at] = order[at[::-1]]
        items, actions = items[order], actions[order]
    elif kind == "shorten":
        keep = int(rng.integers(0, len(items) + 1))
        items, actions = items[:keep], actions[:keep]
    elif kind == "swap":
        other = histories[int(rng.integers(len(histories)))]
        items, actions = other.items.copy(), other.actions.copy()
    return History(items, actions)


def run_random_visits(
    geometry: dict[str, object], scoring: str, seed: int, rounds: int, device: torch.device | None = None
) -> None:
    """Raises `AssertionError` if a score, the books or the account of a request is wrong."""
    rng = np.random.default_rng(seed)
    model, users = _MODELS[scoring], int(rng.integers(1, 6))
    page = int(geometry["page_tokens"])
    engine = worlds.engine(
        _FOLDERS[scoring],
        device,
        page_tokens=page,
        chunk_tokens=page * int(geometry["chunk_pages"]),
        device_cache=f"{geometry['device_pages']} pages",
        onload_buffer=f"{geometry['onload_pages']} pages",
        host_cache=f"{geometry['host_chunks']} chunks",
        pass_tokens=geometry["pass_tokens"],
        cache_mode=geometry["cache_mode"],
        host_memory=geometry["host_memory"],
        zero_on_free=geometry["zero_on_free"],
    )
    histories = [worlds.random_history(rng, int(rng.integers(0, 40))) for _ in range(users)]
    known: dict[int, History] = {}
    try:
        for _ in range(rounds):
            batch: list[RankRequest] = []
            expected = []
            for _ in range(int(rng.integers(1, 6))):
                user = int(rng.integers(users))
                previous = known.get(user)
                history = histories[user] = rewrite(rng, histories[user], histories)
                count = int(rng.choice([0, 6, 9, 12])) if len(history) or not model.scores_last_row else 0
                candidates = rng.integers(0, worlds.ITEMS, count)
                start = 0
                if previous is not None and rng.random() < 0.5:
                    start = int(rng.integers(0, agreement(previous, history) + 1))
                batch.append(worlds.request(user + 1, history, candidates, start))
                expected.append((history, candidates))
                known[user] = history
            outcomes = engine.serve(batch)
            for outcome, (history, candidates) in zip(outcomes, expected, strict=True):
                scores = np.zeros((0, len(model.tasks)), dtype=np.float32)
                if len(candidates):
                    scores = worlds.reference(model, history, candidates)
                answer = worlds.assert_scores(outcome, scores)
                info, window = answer.cache, len(history) - model.window.start(len(history))
                assert info.device + info.host + info.recomputed + info.new == window
                assert info.history_length == len(history)
            engine.manager.check()
            if rng.random() < 0.3:
                engine.idle()
            if rng.random() < 0.05:
                forgotten = int(rng.integers(users))
                (outcome,) = engine.serve([RankRequest(forgotten + 1, NOTHING, NOBODY, forget=True)])
                assert isinstance(outcome, RankAnswer), outcome
                known.pop(forgotten, None)
    finally:
        engine.close(10)
    engine.moves.take_in()
    engine.manager.check()
    assert not engine.manager.tasks


def agreement(a: History, b: History) -> int:
    """Tokens the two histories begin with in common, counted from the start of the window the server keeps."""
    count = min(len(a), len(b))
    differs = np.nonzero((a.items[:count] != b.items[:count]) | (a.actions[:count] != b.actions[:count]))[0]
    common = int(differs[0]) if len(differs) else count
    window = _MODELS["target"].window
    # Past a window shift backwards the server has forgotten tokens it would need: a real client is told so.
    return common if window.start(len(b)) >= window.start(len(a)) else 0
