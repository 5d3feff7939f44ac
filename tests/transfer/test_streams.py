"""What every kind of stream must do, and what it must not promise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import Event as Gate

import pytest

from mtserve_backend.transfer.streams import Event, Stream, StreamBroken, WaitTimeout
from tests.transfer.conftest import PATIENCE_S, WAIT_LIMIT_S

Start = Callable[..., Stream]
Gates = Callable[[], Gate]


def held(stream: Stream, gate: Gate) -> None:
    """Work that runs until the gate opens."""
    stream.submit(lambda: hold(gate))


def hold(gate: Gate) -> None:
    assert gate.wait(PATIENCE_S)


def broken_by(stream: Stream, error: BaseException) -> None:
    def work() -> None:
        raise error

    stream.submit(work)


# --- order ------------------------------------------------------------------------------------------------------


def test_work_on_one_stream_runs_in_order(start: Start) -> None:
    stream, ran = start(), []
    for number in range(200):
        stream.submit(lambda number=number: ran.append(number))
    stream.record().wait(PATIENCE_S)
    assert ran == list(range(200))


def test_submitting_does_not_wait(start: Start, gates: Gates) -> None:
    stream, gate, ran = start(), gates(), []
    held(stream, gate)
    stream.submit(lambda: ran.append(1))
    event = stream.record()
    assert not ran
    assert not event.done
    gate.set()
    event.wait(PATIENCE_S)
    assert ran == [1]
    assert event.done


def test_an_event_does_not_wait_for_what_comes_after_it(start: Start, gates: Gates) -> None:
    stream, gate = start(), gates()
    stream.submit(lambda: None)
    event = stream.record()
    held(stream, gate)
    event.wait(PATIENCE_S)
    assert not stream.record().done


def test_two_streams_do_not_wait_for_each_other(start: Start, gates: Gates) -> None:
    one, other, gate = start("one"), start("other"), gates()
    held(one, gate)
    behind = one.record()
    other.submit(lambda: None)
    other.record().wait(PATIENCE_S)
    assert not behind.done


def test_a_wait_orders_two_streams(start: Start, gates: Gates) -> None:
    one, other, gate, ran = start("one"), start("other"), gates(), []
    held(one, gate)
    one.submit(lambda: ran.append("one"))
    other.submit(lambda: ran.append("before the wait"))
    before = other.record()
    other.wait(one.record())
    other.submit(lambda: ran.append("other"))
    after = other.record()
    before.wait(PATIENCE_S)
    assert ran == ["before the wait"]
    assert not after.done
    gate.set()
    after.wait(PATIENCE_S)
    assert ran == ["before the wait", "one", "other"]


def test_a_wait_between_items_outlasts_the_limit(start: Start, gates: Gates) -> None:
    """A stream holds nothing but its order; deadlines are with who needs the results."""
    one, other, gate = start("one"), start("other"), gates()
    held(one, gate)
    other.wait(one.record())
    after = other.record()
    time.sleep(2 * WAIT_LIMIT_S)
    gate.set()
    after.wait(PATIENCE_S)
    assert other.broken is None


def test_waiting_for_what_is_done_is_nothing(start: Start) -> None:
    one, other = start("one"), start("other")
    event = one.record()
    event.wait(PATIENCE_S)
    other.wait(event)
    other.record().wait(PATIENCE_S)
    event.wait(0.0)


# --- waiting inside a work item ------------------------------------------------------------------------------------


def test_a_wait_inside_a_work_item_holds_back_the_rest_of_it(start: Start, gates: Gates) -> None:
    one, other, gate, ran = start("one"), start("other"), gates(), []
    held(one, gate)
    one.submit(lambda: ran.append("one"))
    event = one.record()

    def work() -> None:
        ran.append("begun")
        gate.set()
        other.wait(event)
        ran.append("went on")

    other.submit(work)
    other.record().wait(PATIENCE_S)
    assert ran == ["begun", "one", "went on"]


def test_a_wait_inside_a_work_item_ends_at_the_limit(start: Start, gates: Gates) -> None:
    one, other, gate, caught = start("one"), start("other"), gates(), []
    held(one, gate)
    event = one.record()

    def work() -> None:
        try:
            other.wait(event)
        except WaitTimeout as late:
            caught.append(late)

    begin = time.monotonic()
    other.submit(work)
    other.record().wait(PATIENCE_S)
    assert len(caught) == 1
    assert time.monotonic() - begin >= WAIT_LIMIT_S
    assert other.broken is None


def test_a_caller_waits_no_longer_than_it_says(start: Start, gates: Gates) -> None:
    stream, gate = start("slow one"), gates()
    held(stream, gate)
    with pytest.raises(WaitTimeout, match=r"slow one stream did not reach an event within 0\.05 s"):
        stream.record().wait(0.05)
    assert stream.broken is None


# --- a stream that breaks -------------------------------------------------------------------------------------------


def test_work_that_raises_breaks_the_stream(start: Start, gates: Gates) -> None:
    stream, gate, ran = start("poor"), gates(), []
    held(stream, gate)
    before = stream.record()
    broken_by(stream, OSError("gone"))
    stream.submit(lambda: ran.append(1))
    after = stream.record()
    gate.set()
    with pytest.raises(StreamBroken, match=r"poor stream died before this event: .*gone"):
        after.wait(PATIENCE_S)
    before.wait(0.0)
    assert before.done
    assert not after.done
    assert not ran, "work went on after work it may depend on had failed"
    assert isinstance(stream.broken, OSError)


@pytest.mark.parametrize(
    "error", [ValueError("plain"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_nothing_kills_a_worker_in_silence(start: Start, error: BaseException) -> None:
    stream = start()
    broken_by(stream, error)
    wait_until(lambda: stream.broken is not None)
    for call in (lambda: stream.submit(print), stream.record):
        with pytest.raises(StreamBroken, match="takes no more work"):
            call()


def test_who_waits_already_learns_of_it_at_once(start: Start, gates: Gates) -> None:
    stream, gate, caught = start(), gates(), []
    held(stream, gate)
    broken_by(stream, OSError())
    event = stream.record()

    def wait() -> None:
        try:
            event.wait(10 * PATIENCE_S)
        except StreamBroken as error:
            caught.append(error)

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    gate.set()
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert len(caught) == 3


def test_a_work_item_that_waits_for_a_dead_stream_may_go_on(start: Start, gates: Gates) -> None:
    one, other, gate, caught = start("one"), start("other"), gates(), []
    held(one, gate)
    broken_by(one, OSError())
    event = one.record()

    def work() -> None:
        gate.set()
        try:
            other.wait(event)
        except StreamBroken as error:
            caught.append(error)

    other.submit(work)
    other.record().wait(PATIENCE_S)
    assert len(caught) == 1
    assert other.broken is None


def test_a_stream_held_back_by_a_dead_one_says_so(start: Start, gates: Gates) -> None:
    """What comes after the wait may need what never happened: it must not run."""
    one, other, gate, ran = start("one"), start("other"), gates(), []
    held(one, gate)
    broken_by(one, OSError())
    other.wait(one.record())
    other.submit(lambda: ran.append(1))
    after = other.record()
    gate.set()
    with pytest.raises(StreamBroken):
        after.wait(PATIENCE_S)
    assert not ran
    assert other.broken is not None


def test_no_event_is_lost_when_a_worker_dies_amid_submissions(start: Start) -> None:
    """Each is refused, reached or failed; none is left waiting behind a worker that has looked for the last time."""
    for _ in range(40):
        stream, events = start(), []
        broken_by(stream, OSError())
        try:
            for _ in range(1000):
                events.append(stream.record())
        except StreamBroken:
            pass
        else:
            wait_until(lambda stream=stream: stream.broken is not None)
        for event in events:
            assert settled(event)


def settled(event: Event) -> bool:
    try:
        event.wait(PATIENCE_S)
    except StreamBroken:
        return not event.done
    except WaitTimeout:
        return False
    return event.done


# --- the end --------------------------------------------------------------------------------------------------------


def test_close_finishes_what_is_queued(start: Start) -> None:
    stream, ran = start(), []
    for number in range(50):
        stream.submit(lambda number=number: ran.append(number))
    event = stream.record()
    stream.close(PATIENCE_S)
    assert ran == list(range(50))
    assert event.done


def test_a_closed_stream_takes_no_more(start: Start) -> None:
    stream = start()
    stream.close(PATIENCE_S)
    with pytest.raises(StreamBroken, match="closed"):
        stream.submit(print)
    with pytest.raises(StreamBroken):
        stream.record()
    stream.close(PATIENCE_S)


def test_close_is_bounded_with_work_in_flight(start: Start, gates: Gates) -> None:
    stream, gate = start("stuck"), gates()
    held(stream, gate)
    begin = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"stuck stream did not finish its work within 0\.1 s"):
        stream.close(0.1)
    assert time.monotonic() - begin < PATIENCE_S / 2


def test_notice_is_given_when_all_before_is_done(start: Start, gates: Gates) -> None:
    stream, gate, told = start(), gates(), []
    held(stream, gate)
    stream.submit(lambda: told.append("work"))
    stream.notify(told.append)
    assert not told
    gate.set()
    stream.record().wait(PATIENCE_S)
    assert told == ["work", None]


def test_notice_is_given_when_the_stream_dies_or_is_dead(start: Start, gates: Gates) -> None:
    stream, gate, told = start(), gates(), []
    held(stream, gate)
    broken_by(stream, OSError("gone"))
    stream.submit(lambda: told.append("never"))
    stream.notify(told.append)
    gate.set()
    wait_until(lambda: bool(told))
    stream.notify(told.append)
    assert len(told) == 2
    assert all(isinstance(error, (OSError, StreamBroken)) for error in told)


def test_a_mark_is_a_point_of_the_item_that_makes_it(start: Start) -> None:
    stream, marks = start(), []
    stream.submit(lambda: marks.append(stream.mark()))
    stream.record().wait(PATIENCE_S)
    marks[0].wait(PATIENCE_S)
    assert marks[0].done


def test_a_broken_stream_can_be_closed(start: Start) -> None:
    stream = start()
    broken_by(stream, OSError())
    wait_until(lambda: stream.broken is not None)
    stream.close(PATIENCE_S)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
