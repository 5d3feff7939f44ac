"""Derive every count and list of a `CacheManager` from its users and tasks, and compare. For tests and debugging."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mtserve_backend.cache.lru import LRU
from mtserve_backend.cache.records import (
    BYTES_PER_USER,
    Counters,
    Geometry,
    OffloadTask,
    OnloadTask,
    User,
    UserRecord,
)
from mtserve_backend.cache.tiers import Tiers


class Books(Protocol):
    """What a manager keeps."""

    geometry: Geometry
    counters: Counters
    tiers: Tiers
    users: LRU[User, UserRecord]
    tasks: set[OnloadTask | OffloadTask]
    leased: set[UserRecord]
    log_bytes: int
    offloading_tokens: int


class AuditError(AssertionError):
    """The manager's books do not agree with what its users and tasks hold."""


def audit(manager: Books) -> None:
    """Raises `AuditError` or `SlotError`."""
    records = [record for _, record in manager.users.items()]
    for record in records:
        _check_record(manager, record)
    _check_references(manager, records)
    tiers = manager.tiers
    _equal("users on the device", {r.user for r in records if len(r.pages)}, {u for u, _ in tiers.on_device.items()})
    _equal("users on the host", {r.user for r in records if len(r.chunks)}, {u for u, _ in tiers.on_host.items()})
    unsaved = {u for u, _ in tiers.unsaved.items()}
    _equal("users to save", unsaved & {r.user for r in records if tiers.full_chunks_unsaved(r) > 0}, unsaved)
    log_bytes = sum(BYTES_PER_USER + r.log.size_bytes for r in records)
    _equal("bytes of token logs", log_bytes, manager.log_bytes)
    offloading = sum(t.buffer_tokens for t in manager.tasks if isinstance(t, OffloadTask))
    _equal("tokens being offloaded", offloading, manager.offloading_tokens)
    _equal("tokens on the device", sum(r.device_length for r in records), manager.counters.on_device)
    _equal("tokens on the host", sum(r.host_length for r in records), manager.counters.on_host)
    _equal("recomputed tokens", sum(manager.counters.recomputed_because.values()), manager.counters.recomputed)
    owners = {*records, *manager.leased, *(t.record for t in manager.tasks)}
    _equal("pins", len(manager.tasks) + len(manager.leased), sum(r.pins for r in owners))


def _check_record(manager: Books, record: UserRecord) -> None:
    geometry = manager.geometry
    if record not in manager.leased:
        _equal("pages of a user", geometry.pages(record.device_length), len(record.pages))
    _equal("chunks of a user", geometry.chunks(record.host_length), len(record.chunks))
    if max(record.device_length, record.host_length) > len(record.log):
        raise AuditError("a user's state is longer than its history")
    if record.device_length and record.host_length > record.device_length:
        raise AuditError("a user's host state is longer than its device state")


def _check_references(manager: Books, records: list[UserRecord]) -> None:
    tiers = manager.tiers
    pages = np.concatenate([np.empty(0, np.int64), *(r.pages for r in records), *(t.held_pages for t in manager.tasks)])
    chunks = np.concatenate(
        [np.empty(0, np.int64), *(r.chunks for r in records), *(t.held_chunks for t in manager.tasks)]
    )
    for pool, slots in ((tiers.primary, pages), (tiers.onload, pages), (tiers.chunks, chunks)):
        mine = slots[(slots >= pool.first) & (slots < pool.first + pool.size)] - pool.first
        pool.check(np.bincount(mine, minlength=pool.size).astype(np.int32))


def _equal(what: str, derived: object, kept: object) -> None:
    if derived != kept:
        raise AuditError(f"{what}: {derived} by its users and tasks, {kept} by the books")
