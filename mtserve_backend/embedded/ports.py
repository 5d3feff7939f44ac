"""Ports: choose free ones, refuse taken ones before a minute of loading is spent."""

import socket
from contextlib import ExitStack

from mtserve_backend.embedded.errors import ServerError


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there now. SO_REUSEADDR as Triton sets it: a port in TIME_WAIT is
    free.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()  # bind alone succeeds beside a listener that also set SO_REUSEADDR
        except OSError:
            return False
    return True


def choose(address: str, wanted: dict[str, int]) -> dict[str, int]:
    """The port of each service. 0 becomes a free one; a taken or a repeated one is an error.

    Between here and the server's own bind another process may take a chosen port: the caller tries again
    then.
    """
    _check_address(address)
    fixed = [port for port in wanted.values() if port]
    for service, port in wanted.items():
        option = f"--{service}-port"
        if not 0 <= port <= 65535:
            raise ServerError(f"{option} {port} is not a port: use 1 to 65535, or 0 for any free one.")
        if port and fixed.count(port) > 1:
            raise ServerError(f"Port {port} is given twice ({option} and another): every service needs its own.")
        if port and not is_free(address, port):
            raise ServerError(
                f"Port {port} ({service}) is in use or not allowed on {address}: choose another with "
                f"{option} (0 = any free one), or see who holds it with `ss -ltnp 'sport = :{port}'`."
            )
    chosen = {}
    with ExitStack() as held:  # all are held until all are chosen, so that no two services get the same one
        for service, port in wanted.items():
            if port == 0:
                probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                probe.bind((address, 0))
                port = probe.getsockname()[1]
            chosen[service] = port
    return chosen


def _check_address(address: str) -> None:
    """Raises ServerError where no port of it could be had."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ServerError(
                f"Cannot listen on {address!r}: {reason}. --address is an IPv4 address of this machine or a name of "
                "one, as 127.0.0.1, or 0.0.0.0 for every interface."
            ) from error
