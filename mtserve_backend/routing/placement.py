"""Where a user belongs: rendezvous hashing, the rule of docs/routing.md, which the client follows as well.

Each name and each user make a number; the user belongs to the name with the largest. So no table is kept, every
process that knows the names agrees, a name that is added takes about 1/n of the users from all others alike, and one
that is gone leaves its users to all others alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def digest(user: int | str) -> str:
    """32 hexadecimal digits that stand for the user. 5 and "5" are two users."""
    kind = "str" if isinstance(user, str) else "int"
    return hashlib.sha256(f"{kind}:{user}".encode()).hexdigest()[:32]


def preference(names: Sequence[str], user_digest: str) -> list[int]:
    """Indexes of `names`, the user's own first. Equal numbers (there are none in practice) are ordered by name."""

    def number(index: int) -> bytes:
        return hashlib.sha256(f"{names[index]}\n{user_digest}".encode()).digest()[:8]

    return sorted(range(len(names)), key=lambda index: (number(index), names[index]), reverse=True)
