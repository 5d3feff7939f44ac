"""What the server knows of each user, as far as this client can be sure, so that calls carry only the rest.

A delta (HISTORY_START = s > 0) says "the first s tokens are the ones you know", and the server takes those on
trust. So a delta is right only if *every* history that the server may hold for the user, now or when the
request is carried out, agrees with the caller's on the first s tokens (one that is shorter than s is no
danger: the server then asks). Two facts are kept per user:

- `told`: the history of the last successful call: its length, a running hash of all its tokens, and its last
  events, or all of them. A whole history extends it if it is as long and the hash of its first tokens is the
  same. New events are appended to it.
- `safe`: how many tokens at the start of `told` are agreed in that sense, for each place (places.py) that was
  asked; 0 for any other. Deltas start there (less a small overlap).

How `safe` moves: a history that does not extend `told` sets it to 0 everywhere before it is sent, so that whole
histories are sent from then on. A successful call sets it to the whole length where it was answered, but only if the
call was alone: no other request of this user was on its way during it, and none that was given up (timed out,
connection lost) may still be carried out and say something else. Otherwise it stays, which costs a few tokens
more per call and no correctness.

What other clients tell the server about the same user cannot be seen from here. Two cheap guards: a delta
repeats OVERLAP tokens, which the server compares; and an answer to a delta that reports more new tokens than
there can be, or another length, is distrusted (`Ticket.doubtful`), and the whole history is sent.

Memory: about 1 KB a user (`users` at most), and EVENT_BYTES = 12 bytes an event for the histories kept
whole (`tokens` events at most, all users together). Beyond that, the users seen longest ago lose their events
first, then everything. Losing it costs bytes sent again, or HistoryNeeded where only new events were given.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from mtserve_client.errors import HistoryNeeded
from mtserve_client.events import EVENT_BYTES, Events
from mtserve_client.protocol import CacheInfo
from mtserve_client.users import UserId

# Tokens of the known part that a delta repeats (192 bytes), for the server to compare.
OVERLAP = 16
# Seconds after which a request that got no answer is taken for dead: far beyond a server's own deadline.
GIVEN_UP_S = 60.0


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def copy(self) -> _Hash: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True)
class _History:
    """A history as far as it is kept: `held` are the packed events from position `origin` on."""

    length: int
    hash: _Hash
    held: bytes
    origin: int

    @staticmethod
    def empty() -> _History:
        return _History(0, hashlib.blake2b(digest_size=16), b"", 0)

    def extended(self, packed: bytes) -> _History:
        """This history followed by more events."""
        grown = self.hash.copy()
        grown.update(packed)
        return _History(self.length + len(packed) // EVENT_BYTES, grown, self.held + packed, self.origin)

    def grown_to(self, packed: bytes) -> _History | None:
        """The whole history `packed`, if it begins with this one; otherwise None."""
        known = self.length * EVENT_BYTES
        if len(packed) < known:
            return None
        hashed = hashlib.blake2b(digest_size=16)
        view = memoryview(packed)
        hashed.update(view[:known])
        if hashed.digest() != self.hash.digest():
            return None
        hashed.update(view[known:])
        return _History(len(packed) // EVENT_BYTES, hashed, packed, 0)

    def from_position(self, position: int) -> bytes:
        """The packed events from `position` (>= origin) on."""
        return self.held[(position - self.origin) * EVENT_BYTES :]

    def cut(self, position: int) -> _History:
        """This history without the events held before `position`."""
        if position <= self.origin:
            return self
        return _History(self.length, self.hash, self.from_position(position), position)


def _hash_of(history: _History | None) -> _Hash | None:
    """What tells one told history from another, also after its events were cut."""
    return None if history is None else history.hash


@dataclass(eq=False)
class _Record:
    """One user."""

    told: _History | None = None
    safe: dict[int, int] = field(default_factory=dict)  # by place
    sent: int = 0  # tickets opened, ever
    open: int = 0  # tickets open now
    breaks: int = 0  # how often a history was sent that did not extend `told`
    # Until when requests without an answer may still be carried out: those whose history `told` extends, and
    # others.
    harmless_until: float = float("-inf")
    harmful_until: float = float("-inf")


@dataclass(eq=False)
class Ticket:
    """One call to the server from its opening to its end: what to send, and what an answer to it proves."""

    user: UserId
    history: _History
    safe: dict[int, int]  # of the record, when opened
    record: _Record
    number: int  # among the record's tickets
    breaks: int  # of the record, when opened
    alone: bool  # when opened
    place: int = 0  # that is asked
    known: int = 0  # tokens that it should know
    under_way: bool = False  # sent, without an answer yet
    lost: bool = False  # sent, and given up without a final answer: may still be carried out

    def __post_init__(self) -> None:
        self.ask(self.place)

    def ask(self, place: int) -> None:
        """From now on the call is put to `place`."""
        self.place = place
        self.known = self.safe.get(place, 0)

    @property
    def start(self) -> int:
        """The position to send from: OVERLAP tokens before what the server lacks; 0: the whole history."""
        return 0 if self.broken else max(0, self.known - OVERLAP)

    @property
    def broken(self) -> bool:
        """Whether another call has stated another history since this one opened."""
        return self.breaks != self.record.breaks

    def events(self, start: int) -> Events:
        """The events from `start` on.

        Raises:
            HistoryNeeded: they are not kept here any more.
        """
        if start < self.history.origin:
            raise HistoryNeeded(
                f"events of this user are needed from position {start}, and this client keeps only "
                f"those from {self.history.origin} on: pass history= the whole history",
                start,
            )
        return Events.unpack(self.history.from_position(start))

    def sending(self) -> None:
        """To be called before each sending, so that one interrupted on its way is not forgotten."""
        self.under_way = True

    def heard(self, final: bool) -> None:
        """To be called after each sending; `final`: the server has decided, and that sending is over."""
        self.under_way = False
        self.lost = self.lost or not final

    def doubtful(self, start: int, cache: CacheInfo) -> bool:
        """Whether an answer to what was sent from `start` on may rest on another history than this call's."""
        if start == 0:
            return False
        length = self.history.length
        return self.broken or cache.new > length - self.known or cache.history_length != length


class Memory:
    """What the server knows, for the `users` users seen last, with the events of `tokens` tokens.
    Thread-safe.

    Every opened ticket must be closed once, by `succeed` or by `fail`.
    """

    def __init__(
        self, users: int, tokens: int, clock: Callable[[], float] = time.monotonic, deltas: bool = True
    ) -> None:
        """Without `deltas` every call states the whole history."""
        self._deltas = deltas
        self._max_users = users
        self._max_tokens = tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[UserId, _Record] = OrderedDict()  # longest unseen first
        self._whole: OrderedDict[UserId, int] = OrderedDict()  # users kept with all their events, and how many
        self._tokens = 0  # the sum of those

    def __len__(self) -> int:
        return len(self._records)

    @property
    def tokens(self) -> int:
        """Events of histories kept whole."""
        return self._tokens

    def open(self, user: UserId, history: Events | None, new_events: Events | None) -> Ticket:
        """A ticket for a call that states `history`, or the last successful call's history and `new_events`.

        Raises:
            HistoryNeeded: `history` is None and nothing is remembered of this user.
        """
        with self._lock:
            record = self._records.get(user)
            told = record.told if record is not None else None
        stated: _History | None
        if history is None:
            if told is None:
                raise HistoryNeeded("nothing is remembered of this user: pass history= the whole history", position=0)
            stated = told.extended((new_events or Events.empty()).pack())
            extends = True
        else:  # hashed outside the lock: a long history takes 0.1 ms
            packed = history.pack()
            stated = (told or _History.empty()).grown_to(packed)
            extends = stated is not None
            stated = stated or _History.empty().grown_to(packed)
            assert stated is not None  # every history begins with the empty one
        with self._lock:
            record = self._records.setdefault(user, _Record())
            if _hash_of(record.told) is not _hash_of(told):  # another call has ended meanwhile: nothing is proved
                extends = False
            now = self._clock()
            if not extends:
                record.safe = {}
                record.breaks += 1
                record.harmful_until = max(record.harmful_until, record.harmless_until)
            ticket = Ticket(
                user,
                stated,
                safe=dict(record.safe) if self._deltas else {},
                record=record,
                number=record.sent + 1,
                breaks=record.breaks,
                alone=record.open == 0 and record.harmful_until <= now,
            )
            record.sent += 1
            record.open += 1
            self._records.move_to_end(user)
            self._forget_some()
        return ticket

    def succeed(self, ticket: Ticket, cache: CacheInfo) -> None:
        """The call was answered: its history is what the next new events follow."""
        record = ticket.record
        with self._lock:
            record.open -= 1
            alone = ticket.alone and record.sent == ticket.number
            if ticket.lost and alone:
                record.harmless_until = self._clock() + GIVEN_UP_S
            elif ticket.lost:
                record.harmful_until = self._clock() + GIVEN_UP_S
            if cache.history_length != ticket.history.length:
                record.safe.pop(ticket.place, None)
            elif alone:
                record.safe[ticket.place] = ticket.history.length
            record.told = ticket.history
            self._keep(ticket.user, record)

    def fail(self, ticket: Ticket) -> None:
        """The call brought no answer, or a refusal: what is remembered of the user stays."""
        record = ticket.record
        with self._lock:
            record.open -= 1
            if ticket.lost or ticket.under_way:
                record.harmful_until = self._clock() + GIVEN_UP_S
            elif (
                record.told is None
                and record.open == 0
                and record.harmful_until <= self._clock()
                and self._records.get(ticket.user) is record
            ):
                del self._records[ticket.user]  # a refused stranger leaves nothing

    def forget(self, user: UserId) -> None:
        """Drop what is remembered of the user; the next call sends the whole history."""
        with self._lock:
            record = self._records.get(user)
            if record is not None:
                record.told = None
                record.safe = {}
                record.breaks += 1
                record.harmful_until = max(record.harmful_until, record.harmless_until)
                self._drop_events(user)

    def _keep(self, user: UserId, record: _Record) -> None:
        """Book the events of a record whose history is new; cut what may not be kept."""
        assert record.told is not None
        self._drop_events(user)
        if self._records.get(user) is not record:
            return
        if record.told.origin == 0 and record.told.length <= self._max_tokens:
            self._whole[user] = record.told.length
            self._tokens += record.told.length
            while self._tokens > self._max_tokens:
                other = next(iter(self._whole))
                self._drop_events(other)
                self._cut(self._records[other])
        else:
            self._cut(record)

    @staticmethod
    def _cut(record: _Record) -> None:
        """Keep only the events that the next delta may need, to the place that knows most."""
        if record.told is not None:
            record.told = record.told.cut(max(0, max(record.safe.values(), default=0) - OVERLAP))

    def _drop_events(self, user: UserId) -> None:
        self._tokens -= self._whole.pop(user, 0)

    def _forget_some(self) -> None:
        """Forget the users longest unseen while there are too many, sparing those with calls under way."""
        while len(self._records) > self._max_users:
            user = next((user for user, record in self._records.items() if not record.open), None)
            if user is None:
                return
            del self._records[user]
            self._drop_events(user)
