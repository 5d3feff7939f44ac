"""A real tritonserver without a container: the one that the `nvidia-pytriton` wheel carries.

    with EmbeddedServer(repository="model_repository") as server:
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

Tests, the demo and `mtserve serve` start their server here. Nothing of PyTriton's own API is used.

Who does what, in the order of reading:
    errors.py         the one exception, whose text says what to do
    installation.py   finds the server, the stub and libpython; lays out the private folder they run from
    ports.py          chooses free ports, refuses taken ones
    command.py        tritonserver's options
    shared_memory.py  is /dev/shm there and large enough?
    server_log.py     the server's log, reduced to what went wrong
    keeper.py         the small process between us and the server: it outlives us long enough to clean up
    server.py         EmbeddedServer
"""

from mtserve_backend.embedded.errors import ServerError
from mtserve_backend.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "ServerError"]
