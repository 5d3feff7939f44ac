"""What a request must satisfy before it reaches the cache, and the sentence it gets if it does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtserve_backend.cache.history import Items
from mtserve_backend.cache.records import User
from mtserve_backend.ranking import Code, RankRequest, RequestError


@dataclass(frozen=True)
class Limits:
    """How large a request may be. Each check raises `RequestError` (INVALID_ARG); none needs the tensors' values, so
    that what is too large is refused before anything of it is copied.
    """

    max_events: int
    max_candidates: int
    max_user_id_bytes: int

    def check_events(self, count: int) -> None:
        if count > self.max_events:
            raise _invalid(f"{count} history events were sent; at most {self.max_events} are accepted")

    def check_candidates(self, count: int) -> None:
        if count > self.max_candidates:
            raise _invalid(f"{count} candidates were sent; at most {self.max_candidates} are accepted")

    def check_user(self, user: User) -> None:
        """An integer ID has eight bytes, whatever it is."""
        size = len(user.encode("utf-8", "surrogatepass")) if isinstance(user, str) else 0
        if size > self.max_user_id_bytes:
            raise _invalid(f"the user's ID has {size} bytes; at most {self.max_user_id_bytes} are accepted")


@dataclass(frozen=True)
class Admission:
    """Vocabulary and limits. `oov_item` is the row for unknown items; None: they are refused.

    What is kept of a history, and what is ranked, are the items as they were sent: only rows of the model are mapped.
    """

    items: int
    actions: int
    oov_item: int | None
    limits: Limits
    history_needed: bool

    def check(self, request: RankRequest) -> None:
        """Raises `RequestError` (INVALID_ARG)."""
        tokens = request.tokens
        if tokens.start < 0:
            raise _invalid(f"HISTORY_START is {tokens.start}; a position is 0 (the whole history) or more")
        if len(tokens.items) != len(tokens.actions):
            raise _invalid(
                f"HISTORY_ITEMS has {len(tokens.items)} events and HISTORY_ACTIONS {len(tokens.actions)}; "
                "each event needs one of both"
            )
        if not tokens.start and tokens.prefix:
            raise _invalid(
                "prefix_digest is of a history's tokens before HISTORY_START; with HISTORY_START 0 there are none, and "
                "it is 0 or left out"
            )
        self.limits.check_user(request.user)
        self.limits.check_events(len(tokens.items))
        self.limits.check_candidates(len(request.candidates))
        if tokens.stop > np.iinfo(np.int32).max:
            raise _invalid(f"a history of {tokens.stop} events is longer than positions can count (2^31 - 1)")
        if request.top_k is not None and request.top_k < 1:
            raise _invalid(f"top_k is {request.top_k}; it must be 1 or more, or left out to rank all candidates")
        if request.forget and (tokens.stop or len(request.candidates)):
            raise _invalid("a request to forget a user carries no history and no candidates")
        if request.forget and request.user is None:
            raise _invalid("a request to forget a user needs the user's ID")
        if self.history_needed and len(request.candidates) and not tokens.stop:
            raise _invalid("this model scores from the last history event; send at least one event with candidates")
        wrong = (tokens.actions < 0) | (tokens.actions >= self.actions)
        if wrong.any():
            at = int(wrong.argmax())
            raise _invalid(
                f"HISTORY_ACTIONS[{at}] is {int(tokens.actions[at])}; this model knows actions 0..{self.actions - 1}"
            )
        self._check_items(tokens.items, "HISTORY_ITEMS")
        self._check_items(request.candidates, "CANDIDATES")

    def embedded(self, items: Items) -> Items:
        """The model's rows for admitted items."""
        if self.oov_item is None:
            return items
        wrong = self._unknown(items)
        return np.where(wrong, self.oov_item, items) if wrong.any() else items

    def _unknown(self, items: Items) -> npt.NDArray[np.bool_]:
        return (items < 0) | (items >= self.items)

    def _check_items(self, items: Items, name: str) -> None:
        if self.oov_item is not None:
            return
        wrong = self._unknown(items)
        if wrong.any():
            at = int(wrong.argmax())
            raise _invalid(
                f"{name}[{at}] is {int(items[at])}; this model knows items 0..{self.items - 1} "
                "(set unknown_items to 'oov' to map others to its out-of-vocabulary row)"
            )


def _invalid(message: str) -> RequestError:
    return RequestError(Code.INVALID_ARG, message)
