"""`mtserve serve`: an embedded server in the foreground, until a signal."""

import logging
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from mtserve_backend import repository
from mtserve_backend.embedded import EmbeddedServer, ServerError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """The command line of `mtserve serve`, parsed."""

    repository: Path | None = None
    weights: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    config: str = "cpu"
    address: str = "127.0.0.1"
    grpc_port: int = 8001
    http_port: int = 8000
    metrics_port: int = 8002
    log_file: Path | None = None
    log_verbose: int = 0
    exit_timeout: int = 30
    ready_timeout: float = 300.0


def serve(options: ServeOptions) -> None:
    """Run until SIGINT or SIGTERM, then stop in order. A second signal kills the server.

    Raises ServerError or RepositoryError when it cannot start, ends by itself, or does not end in order.
    """
    # Both arrive as KeyboardInterrupt, and SIGINT also in a shell's background job, which starts with it ignored.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="mtserve-repository-") as scratch:
        server = _server(options, Path(scratch))
        try:
            server.start()
            log.info("Serving %s. Stop with Ctrl-C or SIGTERM.", server.repository)
            code = server.wait()
            raise ServerError(_ended(code, server.errors()))
        except KeyboardInterrupt:
            log.info("Stopping: requests in flight are answered first")
            code = server.stop()
        finally:
            server.stop()
    if code:
        raise ServerError(
            f"tritonserver ended with code {code}: --exit-timeout ({options.exit_timeout} s) was over, and models were "
            "not finalized. Clients kept HTTP connections or sequences open, or a request took longer."
        )


def _server(options: ServeOptions, scratch: Path) -> EmbeddedServer:
    source = options.repository or repository.shipped()
    repository.models_of(source)  # Triton serves an empty folder in silence
    if (source / repository.MODEL).is_dir():
        repository.read_model(source / repository.MODEL, options.config)  # Triton takes the default in silence
    composed = bool(options.weights or options.settings)
    if composed:
        repository.write_model(
            scratch,
            weights_dir=options.weights,
            parameters=options.settings,
            config=options.config,
            source=source,
        )
    return EmbeddedServer(
        scratch if composed else source,
        grpc_port=options.grpc_port,
        http_port=options.http_port,
        metrics_port=options.metrics_port,
        address=options.address,
        log_file=options.log_file,
        echo_log=options.log_file is None,
        log_verbose=options.log_verbose,
        exit_timeout=options.exit_timeout,
        ready_timeout=options.ready_timeout,
        model_config_name="" if composed or options.config == "cpu" else options.config,
    )


def _ended(code: int | None, errors: list[str]) -> str:
    """What is known of a server that ended unasked. A code above 128 is that of a signal, as shells count."""
    said = "\n".join(errors) or "nothing"
    if code == 128 + signal.SIGKILL:
        return (
            "tritonserver was killed (SIGKILL). The kernel does so when memory runs out: see `dmesg`, lower host_cache "
            f"or device_cache with --set, and read docs/operations.md, 'When something fails'. It said:\n{said}"
        )
    return f"tritonserver ended by itself with code {code}. It said:\n{said}"
