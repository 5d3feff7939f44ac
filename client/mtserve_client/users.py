"""User IDs: what Triton can carry, on gRPC and on HTTP alike."""

from __future__ import annotations

import numpy as np

from mtserve_client.errors import InvalidRequest

UserId = int | str

_MAX_INTEGER = 2**64 - 1
_MAX_BYTES = 128


def check_user(user: UserId) -> UserId:
    """`user` as a plain int or str. 5 and "5" are two users.

    Raises:
        InvalidRequest: not an integer from 1 to 2**64 - 1, nor a string of 1 to 128 bytes of UTF-8 without
            NUL. (Triton takes ID 0 and "" for "no user", counts the 128 in bytes, and cuts a string at its
            first NUL, so that "a\\0b" would be the user "a".)
    """
    if isinstance(user, str):
        try:
            size = len(user.encode())
        except UnicodeEncodeError:
            raise InvalidRequest("the user ID is not valid Unicode text") from None
        if not 1 <= size <= _MAX_BYTES:
            raise InvalidRequest(f"a string user ID holds 1 to {_MAX_BYTES} bytes of UTF-8, this one {size}")
        if "\0" in user:
            raise InvalidRequest("the user ID holds a NUL, where the server would cut it short")
        return str(user)
    if isinstance(user, bool) or not isinstance(user, (int, np.integer)):
        raise InvalidRequest(f"a user ID is an int or a str, got {type(user).__name__}")
    if not 1 <= user <= _MAX_INTEGER:
        raise InvalidRequest("an integer user ID lies in 1 to 2**64 - 1")
    return int(user)
