"""Each kernel against its floor: the larger of its bytes over the memory's speed and its products over the processor's.

Every call is of another layer of a pool that no cache holds, as in a model. Launching is not part of it, except in the
figure that says how long a layer's launches take: where that is more than the kernels do, a small batch waits for the
processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import numpy as np
import torch

from mtserve_backend.kernels import copies, paged
from mtserve_backend.kernels.layout import Segment
from mtserve_backend.kernels.paged import PagedBatch
from perf.gpu import ceilings
from perf.gpu.ceilings import Ceilings
from perf.gpu.figures import Figure, of_rates, of_times
from perf.gpu.place import Place

COPY_AIM, ATTENTION_AIM = 0.8, 0.5


def run(place: Place) -> list[Figure]:
    best, _ = ceilings.measure(place)
    figures = [
        figure
        for length in place.scale.lengths
        for batch in (1, place.scale.busy)
        for figure in _attention(place, best, length, batch)
    ]
    return [*figures, *_copies(place, best)]


def _pool(place: Place, pages: int) -> torch.Tensor:
    """`[layers, pages, 2, heads, page_tokens, head_dim]`: the model's layers, or more until no cache holds them."""
    model = place.scale.model
    page_bytes = 2 * model.heads * place.scale.page_tokens * model.head_dim * place.dtype.itemsize
    layers = max(model.layers, -(-place.scale.copied_bytes // (pages * page_bytes)))
    shape = (layers, pages, 2, model.heads, place.scale.page_tokens, model.head_dim)
    return torch.randn(shape, device=place.device, dtype=place.dtype).mul_(0.1)


def _attention(place: Place, best: Ceilings, length: int, batch: int) -> list[Figure]:
    scale, model = place.scale, place.scale.model
    each = -(-(length + scale.new) // scale.page_tokens)
    pool = _pool(place, batch * each)
    order = np.random.default_rng(0).permutation(batch * each)  # a user's pages lie anywhere
    rows = scale.new + scale.candidates
    segments = [Segment(i * rows, length, scale.new, scale.candidates, length + scale.new) for i in range(batch)]
    work = PagedBatch.of(segments, np.split(order, batch), pool)
    inner = model.heads * model.head_dim
    q, k, v = torch.split(torch.randn(batch * rows, 3 * inner, device=place.device).to(place.dtype), inner, dim=1)
    out = torch.empty(batch * rows, inner, device=place.device, dtype=place.dtype)
    turn = count()

    def attend() -> None:
        paged.attend(pool[next(turn) % len(pool)], work, q, k, v, out)

    def append() -> None:
        paged.append(pool[next(turn) % len(pool)], work, k, v)

    def launch() -> None:
        append()
        attend()

    value = place.dtype.itemsize
    pairs = batch * (rows * length + scale.new * (scale.new + 1) // 2 + scale.candidates * (scale.new + 1))
    read = batch * (2 * (length + scale.new) * inner + 2 * rows * inner) * value
    floor = max(4.0 * pairs * inner / best.operations, read / best.memory)
    written = batch * 4 * scale.new * inner * value
    what = f"history {length:,}, batch {batch}, one layer"
    return [
        of_times(f"attend, {what}", place.seconds(attend, model.layers), floor, place.aim(ATTENTION_AIM)),
        of_times(f"append, {what}", place.seconds(append, model.layers), written / best.memory),
        of_times(f"launching both, {what}", _launching(place, launch)),
    ]


def _launching(place: Place, work: Callable[[], object]) -> list[float]:
    """What `work` holds up the thread that issues it. On a CPU that is all of it."""
    taken = []
    for _ in range(place.scale.repeats + 2):
        place.settle()
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return taken[2:]


def _copies(place: Place, best: Ceilings) -> list[Figure]:
    """Half of a pool's pages, in any order, to its other half; a chunk's pages of all layers to a buffer."""
    scale, model = place.scale, place.scale.model
    pages = 2 * scale.busy * -(-scale.history // scale.page_tokens)
    pool = _pool(place, pages)
    order = np.random.default_rng(1).permutation(pages)
    staged, primary = order[: pages // 2], order[pages // 2 :]
    # Chunks in turn, each to a buffer of its own: one alone would stay in the device's cache.
    size = scale.chunk_tokens // scale.page_tokens
    chunks = [order[at : at + size] for at in range(0, min(8 * size, len(order) - size + 1), size)]
    buffers = [torch.empty_like(pool[:, :size]) for _ in chunks]
    page_bytes = pool[0, 0].numel() * pool.element_size()
    turn = count()

    def scatter() -> None:
        copies.scatter_pages(pool[next(turn) % len(pool)], staged, primary)

    def gather() -> None:
        index = next(turn) % len(chunks)
        copies.gather_pages(buffers[index], pool, chunks[index])

    return [
        of_rates(
            f"scatter, {len(staged):,} pages of one layer (read + written)",
            2.0 * len(staged) * page_bytes,
            place.seconds(scatter, model.layers),
            best.memory,
            place.aim(COPY_AIM),
        ),
        of_rates(
            f"gather, {size} pages of every layer (read + written)",
            2.0 * size * len(pool) * page_bytes,
            place.seconds(gather, len(chunks)),
            best.memory,
            place.aim(COPY_AIM),
        ),
    ]
