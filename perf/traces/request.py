"""One request of a trace."""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """`user` comes at `time` (seconds) with a history of `history_length` tokens, of which the last `new` are new."""

    user: int
    time: float
    history_length: int
    new: int

    @property
    def known(self) -> int:
        """Tokens of the history that earlier requests of the user brought."""
        return self.history_length - self.new
