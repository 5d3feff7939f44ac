"""Transfers made ready: their slots allocated and held, what they copy written down."""

from __future__ import annotations

from mtserve_backend.cache.records import OffloadTask, OnloadTask, UserRecord, concatenate, runs_of
from mtserve_backend.cache.slots import Slots
from mtserve_backend.cache.tiers import Tiers


def onload_task(tiers: Tiers, record: UserRecord, primary: Slots) -> OnloadTask:
    """Give the user its pages: full ones staged in the onload buffer while it lasts, the others loaded in place.

    The last page, if partial, is always loaded in place: new keys are appended to it at once.
    """
    geometry, tokens = tiers.geometry, record.host_length
    loaded = geometry.pages(tokens)
    count = min(tokens // geometry.page_tokens, tiers.onload.free)
    staged = tiers.onload.allocate(count, references=2)
    record.pages = concatenate(staged, primary[count:])
    tiers.primary.hold(primary[count:loaded])
    tiers.chunks.hold(record.chunks)
    return OnloadTask(
        record=record,
        tokens=tokens,
        pages=record.pages[:loaded].copy(),
        chunk_pages=geometry.chunk_pages,
        staged=staged,
        primary=primary[:count],
        held_pages=concatenate(staged, primary[:loaded]),
        held_chunks=record.chunks,
    )


def offload_task(tiers: Tiers, record: UserRecord, stop: int) -> OffloadTask:
    """Save positions from the host's end up to `stop`, for which the host pool has room."""
    geometry, start = tiers.geometry, record.host_length
    new_chunks = tiers.chunks.allocate(geometry.chunks(stop) - len(record.chunks))
    first_page = start // geometry.page_tokens
    pages = record.pages[first_page : geometry.pages(stop)].copy()
    shared = record.chunks[start // geometry.chunk_tokens :]
    tiers.hold_pages(pages)
    tiers.chunks.hold(shared)
    return OffloadTask(
        record=record,
        start=start,
        stop=stop,
        runs=runs_of(concatenate(record.chunks, new_chunks), pages, first_page, geometry.chunk_pages),
        buffer_tokens=len(pages) * geometry.page_tokens,
        new_chunks=new_chunks,
        held_pages=pages,
        held_chunks=concatenate(shared, new_chunks),
    )
