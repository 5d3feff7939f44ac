"""The manager's single decisions, one situation each; that no sequence of them goes wrong is test_manager_machine's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from mtserve_backend.cache.audit import AuditError
from mtserve_backend.cache.history import BYTES_PER_TOKEN
from mtserve_backend.cache.manager import CacheManager, PinError
from mtserve_backend.cache.records import (
    BYTES_PER_USER,
    Counters,
    Geometry,
    Lease,
    OffloadTask,
    OnloadTask,
    User,
    UserRecord,
    Visit,
)
from mtserve_backend.cache.slots import SlotError
from tests.cache.shadow import tokens_of

PAGE = 4
CHUNK = 8
PLENTY = 1000


def manager(
    device: int = 8, onload: int = 8, host: int = 8, quota: int = PLENTY, log_bytes: int = 10**9
) -> CacheManager:
    """Sizes in pages and chunks."""
    return CacheManager(Geometry(PAGE, CHUNK, device, onload, host), lambda length: 0, quota, log_bytes)


def history(length: int, changed_at: int | None = None) -> Visit:
    tokens = [(i % 5, 0) for i in range(length)]
    if changed_at is not None:
        tokens[changed_at] = (9, 1)
    return Visit("u", tokens_of(0, tokens))


def lease(cache: CacheManager, user: User, length: int, changed_at: int | None = None) -> Lease:
    prepared = cache.prepare(cache.look_up(Visit(user, history(length, changed_at).tokens)))
    assert prepared is not None
    return prepared


def visit(cache: CacheManager, user: User, length: int, changed_at: int | None = None) -> Lease:
    prepared = lease(cache, user, length, changed_at)
    cache.commit(prepared)
    return prepared


def record(cache: CacheManager, user: User) -> UserRecord:
    found = cache.users.get(user)
    assert found is not None
    return found


def save(cache: CacheManager) -> list[OffloadTask]:
    planned = cache.plan_offloads()
    for task in planned:
        cache.offload_done(task, failed=False)
    return planned


def evict(cache: CacheManager, keep: int = 0) -> None:
    """Fill the device, and leave it empty but for `keep` pages."""
    visit(cache, "stranger", (cache.geometry.device_pages - keep) * PAGE)
    visit(cache, "stranger", 0)


def reload(cache: CacheManager, user: User, length: int) -> OnloadTask:
    """The user comes back from the host; the load is under way."""
    evict(cache)
    task = visit(cache, user, length).onload
    assert task is not None
    return task


# --- where a history is found -----------------------------------------------------------------------------------------


def test_a_first_visit_is_all_new() -> None:
    first = visit(manager(), 1, 10)
    assert (first.found_device, first.found_host, first.recomputed, first.new) == (0, 0, 0, 10)


def test_a_return_is_found_on_the_device() -> None:
    cache = manager()
    visit(cache, 1, 10)
    again = visit(cache, 1, 13)
    assert (again.found_device, again.found_host, again.recomputed, again.new) == (10, 0, 0, 3)
    assert again.onload is None


def test_after_eviction_whole_chunks_are_found_on_the_host_and_the_tail_is_recomputed() -> None:
    cache = manager()
    visit(cache, 1, 18)
    save(cache)
    evict(cache)
    again = visit(cache, 1, 20)
    assert (again.found_device, again.found_host, again.recomputed, again.new) == (0, 16, 2, 2)


def test_what_was_never_saved_is_recomputed() -> None:
    cache = manager(host=0)
    visit(cache, 1, 18)
    evict(cache)
    again = visit(cache, 1, 20)
    assert (again.cached, again.recomputed, again.new) == (0, 18, 2)


def test_a_changed_token_cuts_the_state_there() -> None:
    cache = manager()
    visit(cache, 1, 18)
    save(cache)
    changed = visit(cache, 1, 18, changed_at=5)
    assert (changed.cached, changed.new) == (5, 13)
    assert record(cache, 1).host_length == 5


def test_uncached_leases_keep_nothing_and_destroy_nothing() -> None:
    cache = manager()
    visit(cache, 1, 10)
    uncached = cache.prepare_uncached(cache.look_up(Visit(1, history(12).tokens)))
    cache.commit(uncached)
    assert uncached.pages is None
    assert (uncached.cached, uncached.recomputed, uncached.new) == (0, 10, 2)
    assert visit(cache, 1, 12).found_device == 10


def test_nobody_leaves_no_trace() -> None:
    cache = manager()
    look_up = cache.look_up(Visit(None, history(10).tokens))
    cache.commit(cache.prepare_uncached(look_up))
    assert not len(cache.users)
    assert (cache.log_bytes, cache.tiers.primary.used) == (0, 0)


# --- room ------------------------------------------------------------------------------------------


def test_the_longest_unseen_user_is_evicted() -> None:
    cache = manager(device=3)
    for user in ("a", "b", "c"):
        visit(cache, user, PAGE)
    visit(cache, "a", PAGE)
    visit(cache, "d", PAGE)
    assert [user for user, _ in cache.tiers.on_device.items()] == ["c", "a", "d"]


def test_a_user_in_use_is_not_evicted() -> None:
    cache = manager(device=2)
    visit(cache, "a", PAGE)
    visit(cache, "b", PAGE)
    pinned = cache.look_up(Visit("a", history(PAGE).tokens))
    visit(cache, "c", PAGE)
    assert [user for user, _ in cache.tiers.on_device.items()] == ["a", "c"]
    cache.forgo(pinned)


def test_without_room_nobody_is_evicted() -> None:
    cache = manager(device=2)
    visit(cache, "a", PAGE)
    assert cache.prepare(cache.look_up(Visit("b", history(3 * PAGE).tokens))) is None
    assert record(cache, "a").device_length == PAGE
    assert "b" not in cache.users


def test_room_for_a_whole_wave_is_made_at_once_and_for_nobody_in_it() -> None:
    cache = manager(device=8)
    for user in range(4):
        visit(cache, user, 2 * PAGE)
    looked_up = [cache.look_up(Visit(user, history(length).tokens)) for user, length in ((1, 4 * PAGE), (7, 2 * PAGE))]
    cache.make_room(looked_up)
    assert list(dict(cache.tiers.on_device.items())) == [1, 3]
    leases = [cache.prepare(look_up) for look_up in looked_up]
    assert cache.counters.device_evictions == 2
    for taken in leases:
        assert taken is not None
        cache.commit(taken)
    cache.check()


def test_where_there_is_no_room_for_the_whole_wave_nobody_is_evicted_for_it() -> None:
    cache = manager(device=4)
    for user in range(2):
        visit(cache, user, 2 * PAGE)
    looked_up = [cache.look_up(Visit(user, history(3 * PAGE).tokens)) for user in (7, 8)]
    cache.make_room(looked_up)
    assert list(dict(cache.tiers.on_device.items())) == [0, 1]
    first, second = (cache.prepare(look_up) for look_up in looked_up)
    assert first is not None
    assert second is None
    cache.commit(first)
    cache.forgo(looked_up[1])
    cache.check()


def test_a_user_whose_transfer_is_under_way_is_not_evicted() -> None:
    cache = manager(device=2)
    visit(cache, "a", CHUNK)
    (task,) = cache.plan_offloads()
    assert cache.prepare(cache.look_up(Visit("b", history(PAGE).tokens))) is None
    cache.offload_done(task, failed=False)
    assert visit(cache, "b", PAGE).pages is not None


def test_the_longest_unseen_users_are_forgotten_when_logs_outgrow_their_memory() -> None:
    one = BYTES_PER_USER + (10 + 16) * BYTES_PER_TOKEN  # with room to grow
    cache = manager(log_bytes=2 * one)
    for user in ("a", "b", "a", "c"):
        visit(cache, user, 10)
    assert [user for user, _ in cache.users.items()] == ["a", "c"]
    assert cache.counters.logs_dropped == 1
    assert cache.log_bytes == 2 * one


def test_logs_are_bounded_though_every_request_fails() -> None:
    cache = manager(log_bytes=3 * BYTES_PER_USER)
    for user in range(20):
        cache.abort(lease(cache, user, 10))
    assert cache.log_bytes <= 3 * BYTES_PER_USER


def test_a_user_in_transfer_is_not_forgotten() -> None:
    cache = manager(log_bytes=BYTES_PER_USER + (CHUNK + 16) * BYTES_PER_TOKEN)
    visit(cache, "a", CHUNK)
    (task,) = cache.plan_offloads()
    visit(cache, "b", CHUNK)
    assert [user for user, _ in cache.users.items()] == ["a"]
    cache.offload_done(task, failed=False)
    visit(cache, "b", CHUNK)
    assert [user for user, _ in cache.users.items()] == ["b"]
    assert cache.tiers.chunks.used == 0


# --- loads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("buffer", "staged"), [(8, 4), (3, 3), (0, 0)])
def test_full_pages_are_staged_while_the_onload_buffer_lasts(buffer: int, staged: int) -> None:
    cache = manager(onload=buffer)
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    task = reload(cache, 1, 2 * CHUNK)
    assert len(task.staged) == len(task.primary) == staged
    assert np.array_equal(record(cache, 1).pages[:staged], task.staged)
    cache.onload_done(task, failed=False)
    assert (record(cache, 1).pages < cache.geometry.device_pages).all()
    assert cache.tiers.onload.used == 0
    assert record(cache, 1).device_length == 2 * CHUNK


def test_the_partial_last_page_is_loaded_in_place() -> None:
    """New keys are appended to it at once: a scatter behind the compute would overwrite them."""
    cache = manager()
    visit(cache, 1, 10)
    visit(cache, 1, CHUNK)
    save(cache)
    visit(cache, 1, 6)
    task = reload(cache, 1, 7)
    assert task.tokens == 6
    assert len(task.staged) == 1
    assert record(cache, 1).pages[1] < cache.geometry.device_pages


def test_a_failed_load_forgets_the_state_on_both_tiers() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    task = reload(cache, 1, 2 * CHUNK)
    cache.onload_done(task, failed=True)
    assert (record(cache, 1).device_length, record(cache, 1).host_length) == (0, 0)
    assert (cache.tiers.primary.used, cache.tiers.onload.used, cache.tiers.chunks.used) == (0, 0, 0)
    assert cache.counters.onload_failures == 1
    again = visit(cache, 1, 2 * CHUNK)
    assert (again.cached, again.recomputed) == (0, 2 * CHUNK)


def test_a_load_given_up_keeps_its_slots_until_it_is_over() -> None:
    """Its bytes still move; whoever got these pages would have them overwritten."""
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    evict(cache)
    waiting = lease(cache, 1, 2 * CHUNK)
    task = waiting.onload
    assert task is not None
    cache.onload_failed(task)
    cache.abort(waiting)
    assert cache.tiers.chunks.used == 2
    given_out = visit(cache, 2, PAGE).pages
    assert given_out is not None
    assert not set(given_out.tolist()) & set(task.held_pages.tolist())
    cache.onload_done(task, failed=False)
    assert cache.tiers.chunks.used == 0
    assert record(cache, 1).device_length == 0


def test_a_cut_inside_a_page_that_a_load_holds_goes_back_to_its_start() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    task = reload(cache, 1, 2 * CHUNK)
    cut = visit(cache, 1, 2 * CHUNK, changed_at=PAGE + 1)
    assert cut.cached == PAGE
    assert cut.pages is not None
    assert not set(cut.pages[1:].tolist()) & set(task.held_pages.tolist())
    assert record(cache, 1).host_length == PAGE, "the host knows no more than the device"


def test_a_load_left_behind_does_not_end_the_one_that_took_its_place() -> None:
    """Else the next request would read pages that are still being loaded."""
    cache = manager()
    visit(cache, 1, CHUNK)
    save(cache)
    first = reload(cache, 1, CHUNK)
    second = visit(cache, 1, CHUNK, changed_at=1).onload
    assert second is not None
    assert second is not first
    cache.onload_done(first, failed=False)
    assert record(cache, 1).onload is second
    assert lease(cache, 1, CHUNK, changed_at=1).onload is second
    assert cache.counters.onloaded == 0


# --- saving ------------------------------------------------------------------------------------------


def test_only_whole_chunks_are_saved_and_only_once() -> None:
    cache = manager()
    visit(cache, 1, CHUNK - 1)
    assert not save(cache)
    visit(cache, 1, 2 * CHUNK + 3)
    (task,) = save(cache)
    assert (task.start, task.stop) == (0, 2 * CHUNK)
    assert not save(cache)
    assert record(cache, 1).host_length == 2 * CHUNK


def test_a_failed_save_is_tried_again() -> None:
    cache = manager()
    visit(cache, 1, CHUNK)
    (task,) = cache.plan_offloads()
    cache.offload_done(task, failed=True)
    assert record(cache, 1).host_length == 0
    assert cache.tiers.chunks.used == 0
    assert len(save(cache)) == 1
    assert cache.counters.offload_failures == 1


def test_a_failed_save_gives_up_the_chunk_it_shares_with_what_was_saved() -> None:
    """It rewrites a page that holds saved keys too: half written, they are nobody's."""
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    visit(cache, 1, CHUNK + 3)
    visit(cache, 1, 3 * CHUNK)
    (task,) = cache.plan_offloads()
    assert task.start == CHUNK + 3
    cache.offload_done(task, failed=True)
    assert record(cache, 1).host_length == CHUNK
    assert cache.tiers.chunks.used == 1


def test_a_history_cut_while_it_is_saved_does_not_count_what_was_copied() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    (task,) = cache.plan_offloads()
    visit(cache, 1, 2 * CHUNK, changed_at=CHUNK)
    cache.offload_done(task, failed=False)
    assert record(cache, 1).host_length == 0
    assert cache.tiers.chunks.used == 0
    assert cache.counters.host_gained == 0


def test_a_history_cut_beyond_what_is_being_saved_keeps_it() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK + 3)
    (task,) = cache.plan_offloads()
    visit(cache, 1, 2 * CHUNK + 3, changed_at=2 * CHUNK + 1)
    cache.offload_done(task, failed=False)
    assert record(cache, 1).host_length == 2 * CHUNK


def test_a_cut_that_goes_back_behind_what_is_being_saved_gives_it_up() -> None:
    """A tail flush may stop inside a page; a cut later in that page goes back to its start, which the flush holds."""
    cache = manager(device=2)
    visit(cache, 1, PAGE + 1)
    (flush,) = cache.plan_tail_flushes()
    assert flush.stop == PAGE + 1
    visit(cache, 1, PAGE + 4)
    look_up = cache.look_up(Visit(1, history(PAGE + 4, changed_at=PAGE + 2).tokens))
    assert cache.prepare(look_up) is None, "the flush holds the page that would be written"
    cache.forgo(look_up)
    cache.offload_done(flush, failed=False)
    assert record(cache, 1).device_length == PAGE
    assert record(cache, 1).host_length <= PAGE


def test_nothing_is_saved_into_a_chunk_that_a_load_still_holds() -> None:
    """Two loads of one user, the first left behind by a cut; the second ends first."""
    cache = manager()
    visit(cache, 1, CHUNK)
    save(cache)
    first = reload(cache, 1, CHUNK)
    second = visit(cache, 1, CHUNK, changed_at=1).onload
    assert second is not None
    cache.onload_done(second, failed=False)
    assert not cache.plan_offloads()
    cache.onload_done(first, failed=False)
    assert len(save(cache)) == 1
    assert record(cache, 1).host_length == CHUNK


@pytest.mark.parametrize(("quota", "planned"), [(CHUNK - 1, 0), (CHUNK, 1), (2 * CHUNK, 2), (PLENTY, 3)])
def test_over_the_quota_saving_is_refused_counted_and_tried_later(quota: int, planned: int) -> None:
    cache = manager(quota=quota)
    for user in range(3):
        visit(cache, user, CHUNK)
    tasks = cache.plan_offloads()
    assert len(tasks) == planned
    assert cache.counters.offloads_refused == 3 - planned
    for task in tasks:
        cache.offload_done(task, failed=False)
    assert cache.offloading_tokens == 0
    assert len(cache.plan_offloads()) == min(3 - planned, planned)


def test_a_tail_that_the_quota_cannot_take_whole_is_saved_as_far_as_a_chunk() -> None:
    cache = manager(device=3, quota=CHUNK)
    visit(cache, 1, CHUNK + 2)
    (task,) = cache.plan_tail_flushes()
    assert (task.start, task.stop) == (0, CHUNK)
    cache.offload_done(task, failed=False)
    (task,) = cache.plan_tail_flushes()
    assert (task.start, task.stop) == (CHUNK, CHUNK + 2)


def test_who_waits_longest_is_saved_first_however_often_others_come_back() -> None:
    cache = manager(quota=CHUNK)
    for user in ("a", "b", "c"):
        visit(cache, user, CHUNK)
    visit(cache, "a", CHUNK + 1)
    order = []
    while tasks := save(cache):
        order += [task.record.user for task in tasks]
    assert order == ["a", "b", "c"]


def test_a_user_cut_back_has_nothing_to_save_and_is_not_refused() -> None:
    cache = manager(quota=0)
    visit(cache, 1, CHUNK)
    visit(cache, 1, 2)
    assert not cache.plan_offloads()
    assert cache.counters.offloads_refused == 0


def test_a_history_cut_while_it_is_saved_is_saved_afterwards_though_its_request_failed() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    (task,) = cache.plan_offloads()
    cache.abort(lease(cache, 1, 2 * CHUNK, changed_at=CHUNK + 1))
    cache.offload_done(task, failed=False)
    (again,) = save(cache)
    assert (again.start, again.stop) == (0, CHUNK)


def test_the_longest_unseen_user_leaves_the_host() -> None:
    cache = manager(host=2)
    for user in ("a", "b"):
        visit(cache, user, CHUNK)
        save(cache)
    evict(cache)
    visit(cache, "a", CHUNK)
    visit(cache, "c", CHUNK)
    save(cache)
    assert {user for user, _ in cache.tiers.on_host.items()} == {"a", "c"}


def test_two_users_do_not_push_one_another_off_the_host_for_ever() -> None:
    cache = manager(host=1)
    visit(cache, "a", CHUNK)
    visit(cache, "b", CHUNK)
    copied = sum(len(save(cache)) for _ in range(10))
    assert copied == 1
    assert record(cache, "a").host_length == CHUNK


def test_as_many_chunks_as_the_host_has_room_for() -> None:
    cache = manager(host=3)
    visit(cache, 1, 4 * CHUNK)
    (task,) = save(cache)
    assert task.stop == 2 * CHUNK
    (task,) = save(cache)
    assert task.stop == 3 * CHUNK


# --- books ------------------------------------------------------------------------------------------


def test_a_user_has_one_request_at_a_time() -> None:
    cache = manager()
    visit(cache, "u", 5)
    look_up = cache.look_up(history(6))
    with pytest.raises(PinError, match="under way"):
        cache.look_up(history(7))
    cache.forgo(look_up)
    cache.forgo(cache.look_up(history(7)))
    cache.check()


def test_a_load_that_ends_under_a_lease_is_taken_in_after_it() -> None:
    """The lease's pages are those it reads: swapped under it, they could be handed to somebody else."""
    cache = manager()
    visit(cache, 1, CHUNK)
    save(cache)
    evict(cache)
    held = lease(cache, 1, CHUNK)
    assert held.onload is not None
    assert held.pages is not None
    cache.onload_done(held.onload, failed=False)
    assert np.array_equal(record(cache, 1).pages, held.pages)
    assert cache.tasks == {held.onload}
    cache.check()
    cache.commit(held)
    assert not cache.tasks
    assert cache.tiers.onload.used == 0
    assert (record(cache, 1).pages < cache.geometry.device_pages).all()
    cache.check()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cache: setattr(cache.counters, "device_gained", 3),
        lambda cache: setattr(cache, "log_bytes", 1),
        lambda cache: setattr(cache, "offloading_tokens", 1),
        lambda cache: setattr(record(cache, 1), "pins", 1),
        lambda cache: setattr(record(cache, 1), "host_length", 1),
        lambda cache: cache.tiers.on_device.discard(1),
        lambda cache: cache.tiers.primary.allocate(1),
        lambda cache: cache.leased.add(record(cache, 1)),
    ],
)
def test_check_notices_what_is_wrong(spoil: Callable[[CacheManager], object]) -> None:
    cache = manager()
    visit(cache, 1, CHUNK + 1)
    save(cache)
    cache.check()
    spoil(cache)
    with pytest.raises((AuditError, SlotError)):
        cache.check()


def test_a_pin_is_given_back_once() -> None:
    cache = manager()
    done = visit(cache, 1, 4)
    with pytest.raises(PinError):
        cache.commit(done)
    with pytest.raises(PinError):
        cache.abort(done)
    look_up = cache.look_up(Visit(1, history(4).tokens))
    cache.forgo(look_up)
    with pytest.raises(PinError):
        cache.forgo(look_up)


def test_counters_add_up() -> None:
    cache = manager()
    visit(cache, 1, 2 * CHUNK)
    save(cache)
    visit(cache, 1, 2 * CHUNK + 2)
    cache.onload_done(reload(cache, 1, 2 * CHUNK + 3), failed=False)
    counters = cache.counters
    strangers = cache.geometry.device_pages * PAGE
    assert (counters.found_device, counters.found_host, counters.recomputed) == (2 * CHUNK, 2 * CHUNK, 2)
    assert counters.new == 2 * CHUNK + 2 + 1 + strangers
    assert (counters.host_gained, counters.onloaded) == (2 * CHUNK, 2 * CHUNK)
    assert (counters.device_evictions, counters.device_evicted_unsaved) == (1, 2)
    assert counters.hit_ratio() == 4 * CHUNK / (4 * CHUNK + 2 + counters.new)


def test_the_hit_ratio_of_nothing() -> None:
    assert Counters().hit_ratio() == 0.0


def test_the_cache_needs_no_torch() -> None:
    """The same manager runs in a simulation of ten million users."""
    script = "import sys, mtserve_backend.cache.manager, mtserve_backend.cache.audit; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
