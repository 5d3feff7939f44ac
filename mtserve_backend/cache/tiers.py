"""The two tiers: who has which pages and chunks, least recently used first, and how room is made. Metadata only."""

from __future__ import annotations

import numpy as np

from mtserve_backend.cache.lru import LRU
from mtserve_backend.cache.records import Counters, Geometry, User, UserRecord, concatenate
from mtserve_backend.cache.slots import NO_SLOTS, SlotPool, Slots


class Tiers:
    """Pools of device pages, onload-buffer pages and host chunks, and the users that hold them."""

    def __init__(self, geometry: Geometry, counters: Counters, note_freed: bool = False) -> None:
        self.geometry, self.counters = geometry, counters
        self.primary = SlotPool("device pages", geometry.device_pages, note_freed=note_freed)
        self.onload = SlotPool("onload pages", geometry.onload_pages, geometry.device_pages, note_freed)
        self.chunks = SlotPool("host chunks", geometry.host_chunks, note_freed=note_freed)
        self.on_device: LRU[User, UserRecord] = LRU()
        self.on_host: LRU[User, UserRecord] = LRU()
        self.unsaved: LRU[User, UserRecord] = LRU()

    def make_room(self, pages: int) -> bool:
        """Evict the least recently used users until `pages` are free; if that cannot be, nobody: False."""
        short = pages - self.primary.free
        if short <= 0:
            return True
        victims = self.on_device.victims(short, size=lambda r: len(r.pages), spare=lambda r: r.pins > 0)
        if victims:
            self.release_pages(
                concatenate(*(record.pages for record in victims))
            )  # one call is worth it: they are many
        for record in victims or ():
            self.counters.device_evictions += 1
            self.counters.device_evicted += record.device_length
            self.counters.device_evicted_unsaved += record.device_length - record.host_length
            record.pages, record.device_length = NO_SLOTS, 0
            self.drop_device(record)
        return victims is not None

    def make_host_room(self, chunks: int) -> bool:
        """As `make_room`, on the host. A user on the device is no victim: it would be saved again, and so for ever."""
        short = chunks - self.chunks.free
        if short <= 0:
            return True
        victims = self.on_host.victims(
            short, size=lambda r: len(r.chunks), spare=lambda r: r.pins > 0 or r.device_length > 0
        )
        for record in victims or ():
            self.counters.host_evictions += 1
            self.counters.host_evicted += record.host_length
            record.host_length = 0
            self.drop_host(record)
        return victims is not None

    def gain_device(self, record: UserRecord, length: int) -> None:
        """The state of positions up to `length` is in the user's pages, or will be before anybody reads it."""
        self.counters.device_gained += length - record.device_length
        record.device_length = length

    def gain_host(self, record: UserRecord, length: int) -> None:
        self.counters.host_gained += length - record.host_length
        record.host_length = length

    def cut(self, record: UserRecord, length: int) -> None:
        """Keep the state of the first `length` tokens at most.

        A page or chunk that a transfer still holds is not written again by this user: it is left to the transfer and
        the cut moves back to where it starts.
        """
        page = self.geometry.page_tokens
        if record.device_length > length:
            kept = length
            if length % page and self._references(int(record.pages[length // page])) > 1:
                kept = length // page * page
            self._discard_device(record, kept)
            self.trim_pages(record)
        if record.offload and record.device_length < record.offload.stop:
            self.give_up_offload(record)
        self._discard_host(record, min(length, record.device_length or length))
        self.note_unsaved(record)

    def give_up_offload(self, record: UserRecord) -> None:
        """The user's offload, cut or failed, does not count. A chunk that it shares with what was saved may be torn."""
        if record.offload is not None:
            first_chunk = record.offload.start // self.geometry.chunk_tokens
            record.offload = None
            self._discard_host(record, first_chunk * self.geometry.chunk_tokens)

    def trim_pages(self, record: UserRecord) -> None:
        """Give back the pages beyond `device_length`."""
        kept = self.geometry.pages(record.device_length)
        if kept < len(record.pages):
            self.release_pages(record.pages[kept:])
            record.pages = record.pages[:kept].copy()
        if not kept:
            self.drop_device(record)

    def drop_device(self, record: UserRecord) -> None:
        self.release_pages(record.pages)
        record.pages = NO_SLOTS
        self._discard_device(record, 0)
        self.on_device.discard(record.user)
        self.unsaved.discard(record.user)

    def drop_host(self, record: UserRecord) -> None:
        record.offload = None
        self._discard_host(record, 0)

    def full_chunks_unsaved(self, record: UserRecord) -> int:
        chunk = self.geometry.chunk_tokens
        return record.device_length // chunk - record.host_length // chunk

    def note_unsaved(self, record: UserRecord) -> None:
        """Put the user on the list of those with whole chunks to save, where it keeps its place, or take it off."""
        if not self.geometry.host_chunks or self.full_chunks_unsaved(record) <= 0:
            self.unsaved.discard(record.user)
        elif record.user not in self.unsaved:
            self.unsaved.touch(record.user, record)

    def swap_scattered(self, record: UserRecord, staged: Slots, primary: Slots) -> None:
        """The scatter is done: from here on the user's staged pages are read where they were scattered to."""
        count = min(len(staged), len(record.pages))
        moved = np.nonzero(record.pages[:count] == staged[:count])[0]
        self.primary.hold(primary[moved])
        self.onload.release(staged[moved])
        record.pages = record.pages.copy()
        record.pages[moved] = primary[moved]

    def hold_pages(self, pages: Slots) -> None:
        for pool, slots in self._by_pool(pages):
            pool.hold(slots)

    def release_pages(self, pages: Slots) -> None:
        for pool, slots in self._by_pool(pages):
            pool.release(slots)

    def _by_pool(self, pages: Slots) -> tuple[tuple[SlotPool, Slots], ...]:
        if not len(pages):
            return ()
        staged = pages >= self.geometry.device_pages
        if not np.count_nonzero(staged):
            return ((self.primary, pages),)
        return ((self.primary, pages[~staged]), (self.onload, pages[staged]))

    def _discard_device(self, record: UserRecord, length: int) -> None:
        self.counters.device_discarded += record.device_length - length
        record.device_length = length

    def _discard_host(self, record: UserRecord, length: int) -> None:
        """Keep the state of the first `length` tokens at most, and the chunks that hold it."""
        lost = max(0, record.host_length - length)
        self.counters.host_discarded += lost
        record.host_length -= lost
        kept = self.geometry.chunks(record.host_length)
        if kept < len(record.chunks):
            self.chunks.release(record.chunks[kept:])
            record.chunks = record.chunks[:kept].copy()
        if not kept:
            self.on_host.discard(record.user)

    def _references(self, page: int) -> int:
        pool = self.onload if page >= self.geometry.device_pages else self.primary
        return pool.references(page)
