"""What the server knows of each user, as far as this client was told, so that calls carry only the rest.

A delta (HISTORY_START = s > 0) says "the first s tokens are the ones you know", and states their digest. A server that
holds another beginning, or none, asks for more. So what is remembered here need not be right to get right scores: other
clients, lost answers, requests carried out late and servers that were swapped behind a load balancer cost tokens sent
again, never a wrong score. Two facts are kept per user:

- `told`: the history of the last successful call: its length, the digest of all its tokens, and its last events, or
  all of them. A whole history extends it if it is as long and its first tokens have the same digest. New events are
  appended to it.
- `known`: for each place (places.py) that was asked, how many of those tokens it knows. Deltas start there. Where a
  history does not extend `told`, the whole of it is sent.

Memory: about 1 KB a user (`users` at most), and EVENT_BYTES = 12 bytes an event for the histories kept whole (`tokens`
events at most, all users together). Beyond that, the users seen longest ago lose their events first, then everything.
Losing it costs bytes sent again, or HistoryNeeded where only new events were given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from mtserve_client.digest import MASK, digest
from mtserve_client.errors import HistoryNeeded
from mtserve_client.events import EVENT_BYTES, Events
from mtserve_client.users import UserId


@dataclass(frozen=True)
class _History:
    """A history as far as it is kept: `held` are the packed events from position `origin` on."""

    length: int = 0
    digest: int = 0
    held: bytes = b""
    origin: int = 0

    def extended(self, events: Events) -> _History:
        """This history followed by more events."""
        grown = (self.digest + digest(self.length, events)) & MASK
        return _History(self.length + len(events), grown, self.held + events.pack(), self.origin)

    def grown_to(self, events: Events) -> _History | None:
        """The whole history `events`, if it begins with this one; otherwise None."""
        if len(events) < self.length or digest(0, events[: self.length]) != self.digest:
            return None
        grown = (self.digest + digest(self.length, events[self.length :])) & MASK
        return _History(len(events), grown, events.pack(), 0)

    def from_position(self, position: int) -> bytes:
        """The packed events from `position` (>= origin) on."""
        return self.held[(position - self.origin) * EVENT_BYTES :]

    def cut(self, position: int) -> _History:
        """This history without the events held before `position`."""
        if position <= self.origin:
            return self
        return _History(self.length, self.digest, self.from_position(position), position)


@dataclass(eq=False)
class _Record:
    """One user."""

    told: _History | None = None
    known: dict[int, int] = field(default_factory=dict)  # tokens of `told`, by place
    open: int = 0  # tickets


@dataclass(eq=False)
class Ticket:
    """One call to the server from its opening to its end: what to send, and to whom."""

    user: UserId
    history: _History
    known: dict[int, int]  # tokens of `history` that a place knows, when opened
    record: _Record
    extends: bool  # what the record was told
    place: int = 0  # that is asked
    start: int = 0  # the position to send from: what the place lacks; 0: the whole history

    def __post_init__(self) -> None:
        self.ask(self.place)

    def ask(self, place: int) -> None:
        """From now on the call is put to `place`."""
        self.place = place
        self.start = min(self.known.get(place, 0), self.history.length)

    def events(self) -> tuple[Events, int]:
        """The events from `start` on, and the digest of those before them.

        Raises:
            HistoryNeeded: they are not kept here any more.
        """
        if self.start < self.history.origin:
            raise HistoryNeeded(
                f"events of this user are needed from position {self.start}, and this client keeps only "
                f"those from {self.history.origin} on: pass history= the whole history",
                self.start,
            )
        events = Events.unpack(self.history.from_position(self.start))
        return events, (self.history.digest - digest(self.start, events)) & MASK


class Memory:
    """What the server knows, for the `users` users seen last, with the events of `tokens` tokens.
    Thread-safe.

    Every opened ticket must be closed once, by `succeed` or by `fail`.
    """

    def __init__(self, users: int, tokens: int) -> None:
        self._max_users = users
        self._max_tokens = tokens
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
            told, known = (None, {}) if record is None else (record.told, dict(record.known))
        if history is not None:  # digested outside the lock: a long history takes 0.1 ms
            stated = (told or _History()).grown_to(history)
        elif told is not None:
            stated = told.extended(new_events or Events.empty())
        else:
            raise HistoryNeeded("nothing is remembered of this user: pass history= the whole history", position=0)
        extends = stated is not None
        with self._lock:
            record = self._records.setdefault(user, _Record())
            ticket = Ticket(
                user,
                stated or _History().extended(history or Events.empty()),
                known if extends else {},
                record,
                extends,
            )
            record.open += 1
            self._records.move_to_end(user)
            self._forget_some()
        return ticket

    def succeed(self, ticket: Ticket) -> None:
        """The call was answered: its history is what the next new events follow."""
        record = ticket.record
        with self._lock:
            record.open -= 1
            if not ticket.extends:
                record.known = {}
            record.known[ticket.place] = ticket.history.length
            record.told = ticket.history
            self._keep(ticket.user, record)

    def fail(self, ticket: Ticket) -> None:
        """The call brought no answer, or a refusal: what is remembered of the user stays."""
        record = ticket.record
        with self._lock:
            record.open -= 1
            if record.told is None and record.open == 0 and self._records.get(ticket.user) is record:
                del self._records[ticket.user]  # a refused stranger leaves nothing

    def forget(self, user: UserId) -> None:
        """Drop what is remembered of the user; the next call sends the whole history."""
        with self._lock:
            record = self._records.get(user)
            if record is not None:
                record.told = None
                record.known = {}
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
            record.told = record.told.cut(min(record.told.length, max(record.known.values(), default=0)))

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
