"""What callers of this package catch."""


class ServerError(RuntimeError):
    """The server cannot be started, or has failed. The text says why, and what to do about it."""
