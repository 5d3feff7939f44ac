"""One request of a trace: `Request` says who came, when and with how much; `Arrival` has the events as well."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Actions = npt.NDArray[np.int32]


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


class Arrival(NamedTuple):
    """A request with what it brings: the new events, oldest first, and the candidates (none where the trace has none).

    `time`: seconds since the trace's start. `timestamps`: Unix seconds of the events.
    """

    user: int
    time: float
    history_length: int
    items: Ints
    actions: Actions
    timestamps: Ints
    candidates: Ints

    @property
    def new(self) -> int:
        return len(self.items)

    @property
    def known(self) -> int:
        """Where the new events start in the user's history; what HISTORY_START is for a delta."""
        return self.history_length - len(self.items)
