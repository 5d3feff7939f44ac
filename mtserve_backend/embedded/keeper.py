"""The keeper: a small process that runs tritonserver and outlives whoever asked for it, to leave nothing
behind.

    launcher (us)  ->  keeper  ->  tritonserver  ->  stub processes

Why a process of its own: a launcher killed by SIGKILL cannot clean up, and PR_SET_PDEATHSIG on the server
alone fires when the *thread* that forked it ends, not the process: a server started from a short-lived
thread would be stopped with that thread. The keeper has one thread, sees its parent change when the launcher
dies, stops the server in order, kills stragglers, and removes the server's regions in /dev/shm, which Triton
itself forgets whenever it does not end in order (a port taken at the last moment is enough). Should the
keeper be killed, PR_SET_PDEATHSIG, safe here, stops the server.

Run as a script with a Job in JSON; the standard library only, so that it starts in 30 ms. It says one line
on stdout: the server's process ID. Exit code: the server's.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.1
# A private log is nobody's to rotate: it is emptied here.
_PRIVATE_LOG_LIMIT = 64 << 20


@dataclass(frozen=True)
class Job:
    """What to run, and what to leave behind: nothing."""

    command: list[str]
    parent: int
    work_folder: str
    log: str
    log_is_private: bool
    # Removed when the server has ended: every file of /dev/shm that starts with this, and the private folder.
    shm_prefix: str
    private_folder: str
    # Seconds between SIGTERM and SIGKILL.
    patience: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        return Job(**json.loads(text))


def remove_shared_memory(prefix: str, folder: Path = Path("/dev/shm")) -> list[str]:
    """Remove the regions of one server; returns their names."""
    removed = []
    for region in sorted(folder.glob(f"{prefix}*")):
        with contextlib.suppress(FileNotFoundError):  # the server removed it meanwhile
            region.unlink()
            removed.append(region.name)
    return removed


class Keeper:
    """One server, from its start to the last trace of it."""

    def __init__(self, job: Job, told: TextIO) -> None:
        self._job = job
        self._told = told
        self._stop_asked = False

    def ask_to_stop(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: the loop does the rest."""
        self._stop_asked = True

    def run(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self.ask_to_stop)
        try:
            return self._run_server()
        finally:
            remove_shared_memory(self._job.shm_prefix)
            if self._abandoned():  # otherwise the launcher still reads the log, and removes the folder itself
                shutil.rmtree(self._job.private_folder, ignore_errors=True)

    def _run_server(self) -> int:
        keeper = os.getpid()
        with open(self._job.log, "ab") as log:
            server = subprocess.Popen(
                self._job.command,
                cwd=self._job.work_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: _prepare_child(keeper),
            )
        self._told.write(f"{server.pid}\n")
        self._told.flush()
        deadline = None
        while server.poll() is None:
            if deadline is None and (self._stop_asked or self._abandoned()):
                server.terminate()
                deadline = time.monotonic() + self._job.patience
            if deadline is not None and time.monotonic() > deadline:
                server.kill()
            self._limit_log()
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # stubs that survived their server
            os.killpg(server.pid, signal.SIGKILL)
        return server.returncode

    def _abandoned(self) -> bool:
        return os.getppid() != self._job.parent

    def _limit_log(self) -> None:
        if self._job.log_is_private:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._job.log).st_size > _PRIVATE_LOG_LIMIT:
                    os.truncate(self._job.log, 0)


def _prepare_child(keeper: int) -> None:
    """In the child, before exec: a process group for the server and its stubs, and a signal when the
    keeper dies.
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != keeper:  # it died before the line above
        os._exit(1)


if __name__ == "__main__":
    code = Keeper(Job.from_json(sys.argv[1]), sys.stdout).run()
    sys.exit(code if code >= 0 else 128 - code)  # killed by a signal: as a shell says it
