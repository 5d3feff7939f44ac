"""EmbeddedServer: a tritonserver on this machine, for as long as a `with` block lasts."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from mtserve_backend.embedded import installation, keeper, ports, server_log, shared_memory
from mtserve_backend.embedded.command import tritonserver_command
from mtserve_backend.embedded.errors import ServerError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0
# A port chosen as free can be taken before the server binds it (it binds after loading its models).
_ATTEMPTS = 3
_PRIVATE_LOG = "tritonserver.log"


class EmbeddedServer:
    """Starts the server, waits until it is ready, stops it and leaves nothing behind.

    It ends with the process that created it, however that one ends (keeper.py says how); threads may come
    and go. A port of 0 means any free one. Without `log_file` the log lies in a private folder and goes with
    it. Models find the packages of `interpreter`, a Python of this one's minor version; without it, this Python's and
    the mtserve_backend that runs here.
    """

    def __init__(
        self,
        repository: Path | str,
        *,
        grpc_port: int = 0,
        http_port: int = 0,
        metrics_port: int = 0,
        address: str = "127.0.0.1",
        log_file: Path | str | None = None,
        echo_log: bool = False,
        log_verbose: int = 0,
        exit_timeout: int = 30,
        ready_timeout: float = 300.0,
        model_config_name: str = "",
        extra_arguments: Sequence[str] = (),
        interpreter: Path | None = None,
        metrics: bool = True,
    ) -> None:
        self.repository = Path(repository).resolve()
        self._wanted = {"grpc": grpc_port, "http": http_port, "metrics": metrics_port}
        self._address = address
        self._log_file = Path(log_file).resolve() if log_file is not None else None
        self._echo_log = echo_log
        self._log_verbose = log_verbose
        self._exit_timeout = exit_timeout
        self._ready_timeout = ready_timeout
        self._model_config_name = model_config_name
        self._extra_arguments = list(extra_arguments)
        self._interpreter = interpreter
        self._metrics = metrics

        self._ports: dict[str, int] = {}
        self._folder: Path | None = None
        self._keeper: subprocess.Popen[str] | None = None
        self._log_start = 0
        self._follower: server_log.Follower | None = None
        self._shm_prefix = f"mtserve-{uuid.uuid4().hex[:12]}-"
        self.pid = 0
        """The tritonserver's process ID; 0 while there is none."""

    @property
    def grpc_url(self) -> str:
        """What tritonclient.grpc takes: host and port."""
        return f"{self._host}:{self._ports['grpc']}"

    @property
    def http_url(self) -> str:
        """With its scheme, for urllib and browsers; tritonclient.http wants it without: see `http_host`."""
        return f"http://{self.http_host}"

    @property
    def http_host(self) -> str:
        """What tritonclient.http takes: host and port."""
        return f"{self._host}:{self._ports['http']}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._host}:{self._ports['metrics']}/metrics"

    @property
    def log_path(self) -> Path | None:
        """Where the server writes its log; None before the start and, for a private log, after the stop."""
        return self._log_file or (self._folder / _PRIVATE_LOG if self._folder else None)

    @property
    def shm_prefix(self) -> str:
        """What the names of this server's regions in /dev/shm start with."""
        return self._shm_prefix

    @property
    def _host(self) -> str:
        return "localhost" if self._address in ("127.0.0.1", "0.0.0.0") else self._address

    def __enter__(self) -> "EmbeddedServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until every model is loaded. Raises ServerError, quoting the server, and leaves
        nothing running.
        """
        if self._keeper is not None:
            raise ServerError("This server is running already: stop it first, or create another.")
        if not self.repository.is_dir():
            raise ServerError(f"The model repository {self.repository} does not exist.")
        found = installation.find()
        shared_memory.check()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._ports = ports.choose(self._address, self._wanted)
                self._launch(found)
                self._wait_until_ready()
                return
            except ServerError:
                last = attempt == _ATTEMPTS or not self._port_was_snatched()
                self.stop()
                if last:
                    raise
                log.warning("A port was taken by another process meanwhile: starting again with others")
            except BaseException:  # Ctrl-C while models load
                self.stop()
                raise

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the server to end by itself; its exit code, or None when it still runs after `timeout`
        seconds.
        """
        if self._keeper is None:
            return None
        try:
            return self._keeper.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int | None:
        """Stop in order: requests in flight are answered, models finalized. Returns the server's exit code.

        What has not ended a little after `exit_timeout` is killed, and so it is on Ctrl-C meanwhile. Stopping twice is
        harmless.

        A code other than 0 says that models were not finalized, because the time was over. Two things make Triton wait
        for all of it, though nothing is computed: a sequence left open, and an HTTP connection that a client keeps.
        """
        code = None
        if self._keeper is not None:
            self._keeper.terminate()
            try:
                code = self._keeper.wait(self._patience + 10)
            except subprocess.TimeoutExpired:
                log.error("The server's keeper did not end: killing it")
                self._kill(self._keeper)
            except KeyboardInterrupt:
                log.warning("Interrupted again: killing the server")
                self._kill(self._keeper)
            self._keeper = None
            self.pid = 0
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        return code

    def errors(self) -> list[str]:
        """What the server has reported as errors since it was started, from its log."""
        return server_log.errors(self._log())

    def _log(self) -> str:
        """The log since the start; a file of the caller's may hold more."""
        return server_log.read(self.log_path, self._log_start) if self.log_path else ""

    @property
    def _patience(self) -> float:
        return self._exit_timeout + 5.0

    def _launch(self, found: installation.Installation) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mtserve-server-"))
        environment = installation.lay_out(found, self._folder, self._interpreter)
        log_path = self._log_file or self._folder / _PRIVATE_LOG
        self._log_start = _prepare_log(log_path)
        if self._echo_log:
            self._follower = server_log.Follower(log_path, self._log_start, sys.stderr)
        job = keeper.Job(
            command=tritonserver_command(
                found.server,
                self.repository,
                installation.backends_folder(self._folder),
                ports=self._ports,
                address=self._address,
                shm_prefix=self._shm_prefix,
                exit_timeout=self._exit_timeout,
                log_verbose=self._log_verbose,
                model_config_name=self._model_config_name,
            )
            + ([] if self._metrics else ["--allow-metrics=false"])
            + self._extra_arguments,
            parent=os.getpid(),
            work_folder=str(installation.work_folder(self._folder)),
            log=str(log_path),
            log_is_private=self._log_file is None,
            shm_prefix=self._shm_prefix,
            private_folder=str(self._folder),
            patience=self._patience,
        )
        # A session of its own: Ctrl-C in a terminal reaches the launcher only, which then stops the server
        # in order.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, job.to_json()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._keeper.stdout is not None:
            with self._keeper.stdout as said:
                # Nothing is said when the keeper failed, which the wait for readiness reports.
                self.pid = int(said.readline() or 0)
        log.info("tritonserver %d: gRPC %s, %s, %s", self.pid, self.grpc_url, self.http_url, self.metrics_url)

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        told = started
        while not self._answers():
            now = time.monotonic()
            code = self.wait(0)
            if code is not None:
                raise ServerError(self._failure(f"tritonserver ended with code {code} while starting"))
            if now - started > self._ready_timeout:
                raise ServerError(self._failure(f"tritonserver was not ready after {self._ready_timeout:.0f} s"))
            if now - told > _PROGRESS_SECONDS:
                told = now
                log.info("Waiting for the server (%.0f s): %s", now - started, server_log.latest(self._log()))
            time.sleep(_POLL_SECONDS)
        log.info("tritonserver is ready after %.1f s", time.monotonic() - started)

    def _answers(self) -> bool:
        """All models are loaded; and the metrics are served too, which is the last thing that Triton
        starts.
        """
        ready = f"{self.http_url}/v2/health/ready"
        for url in (ready, self.metrics_url) if self._metrics else (ready,):
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except OSError:  # nobody listens yet, or (HTTPError) 400: not all models are ready
                return False
        return True

    def _failure(self, what: str) -> str:
        quoted = self.errors()
        said = "\n".join(f"  {line}" for error in quoted for line in error.splitlines())
        if not said:
            said = "\n".join(f"  {line}" for line in self._log().splitlines()[-10:])
        kept = f"\nThe whole log: {self._log_file}" if self._log_file else ""
        return f"{what}. It said:\n{said or '  nothing'}{kept}"

    def _port_was_snatched(self) -> bool:
        return 0 in self._wanted.values() and server_log.bind_failed(self._log())

    def _kill(self, process: "subprocess.Popen[str]") -> None:
        """The last resort: what the keeper would have done."""
        process.kill()
        process.wait()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        keeper.remove_shared_memory(self._shm_prefix)


def _prepare_log(path: Path) -> int:
    """Make sure that the log can be written; returns where in the file this run begins."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            return file.tell()
    except OSError as error:
        raise ServerError(f"The log file {path} cannot be written: {error.strerror}.") from error
