"""The inference pipeline: Algorithm 1 of the MTServe paper, step by step, for one wave of users at a time.

Every batch becomes waves of different users: requests of one user run in order of arrival, and what has no room now
runs in the next wave. All metadata is touched by the calling thread only. A failure ends in a recompute or in an error
for the one request it belongs to.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from mtserve_backend.admission import Admission
from mtserve_backend.cache.history import HistoryGap
from mtserve_backend.cache.manager import CacheManager
from mtserve_backend.cache.records import Lease, LookUp, OffloadTask, OnloadTask, Visit
from mtserve_backend.models.contract import RankingModel
from mtserve_backend.ranking import CacheInfo, Code, Outcome, RankAnswer, RankRequest, RequestError, rank
from mtserve_backend.steps import StepTimes, WaveReport
from mtserve_backend.transfer.completions import Completion, CompletionQueue
from mtserve_backend.transfer.offload import Offloader
from mtserve_backend.transfer.onload import Onloader, OnloadFailed, OnloadHandle
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import Event, Stream, WaitTimeout
from mtserve_backend.transfer.view import CacheView
from mtserve_backend.waves import Job, Slice, slices, strip_cached_tokens

T = TypeVar("T")

log = logging.getLogger(__name__)

# No slice of work takes this long; past it the compute stream is taken for dead.
COMPUTE_LIMIT_S = 600.0


class ComputeLost(RuntimeError):
    """The compute stream does not answer any more."""


@dataclass(frozen=True)
class Streams:
    """The four streams of the paper (section 4.4)."""

    compute: Stream
    onload: Stream
    scatter: Stream
    offload: Stream

    def all(self) -> tuple[Stream, ...]:
        return (self.compute, self.onload, self.scatter, self.offload)


class Engine:
    """Owns model, manager, pools and streams. `serve` and `upkeep` are for one thread."""

    def __init__(
        self,
        model: RankingModel,
        admission: Admission,
        manager: CacheManager,
        pools: Pools,
        streams: Streams,
        completions: CompletionQueue,
        onloader: Onloader,
        offloader: Offloader,
        pass_tokens: int,
        transfer_timeout_s: float,
        observe: Callable[[WaveReport], None] = lambda report: None,
    ) -> None:
        self.model = model
        self.manager = manager
        self.streams = streams
        self._admission = admission
        self._pools = pools
        self._completions = completions
        self._onloader = onloader
        self._offloader = offloader
        self._pass_tokens = pass_tokens
        self._transfer_timeout_s = transfer_timeout_s
        self.observe = observe
        self._handles: dict[OnloadTask, OnloadHandle] = {}
        self._last_compute: Event | None = None

    def serve(self, requests: Sequence[RankRequest]) -> list[Outcome]:
        """Answer a batch; outcome i belongs to request i."""
        outcomes: dict[int, Outcome] = {}
        pending: deque[Job] = deque()
        for index, request in enumerate(requests):
            try:
                pending.append(Job(index, self._admission.admit(request)))
            except RequestError as refusal:
                outcomes[index] = refusal
        while pending:
            self.upkeep()
            self._serve_wave(pending, outcomes)
        return [outcomes[index] for index in range(len(requests))]

    def upkeep(self) -> None:
        """Take in what the copying threads report, and give them what is waiting."""
        for completion in self._completions.drain():
            self._complete(completion)
        self._submit_offloads()

    @property
    def broken(self) -> str | None:
        """Why the engine is not whole any more, or None."""
        dead = [stream.name for stream in self.streams.all() if stream.broken is not None]
        return f"the {' and '.join(dead)} stream died" if dead else None

    def close(self, timeout_s: float) -> None:
        """Stop the streams, each within `timeout_s`. Raises `WaitTimeout` if one does not stop."""
        for stream in self.streams.all():
            stream.close(timeout_s)

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def _serve_wave(self, pending: deque[Job], outcomes: dict[int, Outcome]) -> None:
        """Run a wave taken from the front of `pending`; what does not fit, or must run again, is put back there."""
        steps = StepTimes()
        with steps.step(1):
            wave = self._look_up(pending, outcomes)
        with steps.step(2):
            jobs = self._prepare(wave, pending)
            handles = self._start_onloads(jobs)
        row_count = 0
        try:
            with steps.step(3):
                work = [strip_cached_tokens(job, job.lease, self.model.scores_last_row) for job in jobs if job.lease]
            for part in slices(work, self._pass_tokens):
                with steps.step(4):
                    rows = part.rows(self._pools.device.device)
                    embedded = self._submit(partial(self.model.embed, rows))
                with steps.step(5):
                    view = self._view(part, handles)
                with steps.step(6):
                    x = embedded()
                with steps.step(7):
                    self._scatter(handles)
                with steps.step(8):
                    outputs = self._submit(partial(self.model.encode, x, view))()
                    part.keep_outputs(outputs)
                row_count += len(rows)
                steps.waited += view.waited_s
        except OnloadFailed as failure:
            self._retry_without(failure, jobs, pending)
            return
        except ComputeLost as error:
            # The stuck work may still write to the leased pages: the leases are never given back.
            self._refuse(jobs, error, outcomes)
            return
        except Exception as error:
            log.exception("a wave of %d requests failed", len(jobs))
            self._retry_alone(error, jobs, pending, outcomes)
            return
        finally:
            self._scatter(handles)
        with steps.step(9):
            for job in jobs:
                if job.lease:
                    self.manager.commit(job.lease)
            self._submit_offloads()
        with steps.step(10):
            for job in jobs:
                outcomes[job.index] = self._answer(job)
        self.observe(WaveReport(len(jobs), row_count, steps))

    # --- its parts ---------------------------------------------------------------------------------------------------

    def _look_up(self, pending: deque[Job], outcomes: dict[int, Outcome]) -> list[Job]:
        """Take jobs of different users off `pending`, compared and pinned; later ones of a user stay, in order."""
        wave: list[Job] = []
        stay: list[Job] = []
        users = set()
        while pending and not (wave and wave[0].alone):
            job = pending.popleft()
            user = job.request.user
            if user in users or (wave and job.alone):
                stay.append(job)
                continue
            if user is not None:
                users.add(user)
            try:
                job.look_up = self.manager.look_up(Visit(user, job.request.tokens))
            except HistoryGap as gap:
                outcomes[job.index] = RequestError(Code.NOT_FOUND, str(gap))
                users.discard(user)
            else:
                wave.append(job)
        pending.extendleft(reversed(stay))
        return wave

    def _prepare(self, wave: list[Job], pending: deque[Job]) -> list[Job]:
        """Lease pages, users on the device first: they need the fewest, and must not be evicted by the others.

        A job without room makes the last of the wave wait for the next one, or waits itself if it is the last.
        """
        waiting = deque(sorted(wave, key=lambda job: not self._resident(job)))
        jobs: list[Job] = []
        deferred: list[Job] = []
        while waiting:
            job = waiting.popleft()
            job.lease = self._lease(job)
            if job.lease is not None:
                jobs.append(job)
            elif waiting:
                deferred.append(self._forgo(waiting.pop()))
                waiting.appendleft(job)
            elif jobs:
                deferred.append(self._forgo(job))
            elif self._await_completion():
                waiting.append(job)
            else:
                job.lease = self.manager.prepare_uncached(_looked_up(job))
                jobs.append(job)
        pending.extendleft(sorted(deferred, key=lambda job: job.index, reverse=True))
        return jobs

    def _lease(self, job: Job) -> Lease | None:
        """None: no room at present. A job that nothing is kept for, or that failed before, is never in want of room."""
        if job.request.user is None or not self.manager.geometry.device_pages or job.attempts > 1:
            return self.manager.prepare_uncached(_looked_up(job))
        return self.manager.prepare(_looked_up(job))

    def _forgo(self, job: Job) -> Job:
        self.manager.forgo(_looked_up(job))
        job.look_up = None
        return job

    @staticmethod
    def _resident(job: Job) -> bool:
        return _looked_up(job).record.device_length > 0

    def _start_onloads(self, jobs: list[Job]) -> list[OnloadHandle]:
        """Handles of all loads this wave depends on, those started for an earlier one included."""
        tasks = [job.lease.onload for job in jobs if job.lease and job.lease.onload]
        new = [task for task in tasks if task not in self._handles]
        for handle in self._onloader.load(new, after=self._last_compute):
            self._handles[handle.task] = handle
        return [self._handles[task] for task in tasks]

    def _scatter(self, handles: list[OnloadHandle]) -> None:
        for handle in handles:
            self._onloader.scatter(handle)

    def _view(self, part: Slice, handles: list[OnloadHandle]) -> CacheView:
        return CacheView(self._pools.device, self.model.kv_shape, part.placements(), handles, self.streams.compute)

    def _submit(self, work: Callable[[], T]) -> Callable[[], T]:
        """Run on the compute stream; the result is called for, and raises what the work raised."""
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                with torch.inference_mode():
                    results.append(work())
            except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
                errors.append(error)

        compute = self.streams.compute
        compute.submit(run)
        event = self._last_compute = compute.record()

        def result() -> T:
            try:
                event.wait(COMPUTE_LIMIT_S)
            except WaitTimeout as error:
                raise ComputeLost(str(error)) from error
            if errors:
                raise errors[0]
            return results[0]

        return result

    def _submit_offloads(self) -> None:
        if self._last_compute is not None:
            for task in self.manager.plan_offloads():
                self._offloader.save(task, after=self._last_compute)

    def _answer(self, job: Job) -> Outcome:
        lease, request = job.lease, job.request
        assert lease is not None  # committed just now
        try:
            scores = np.zeros((0, len(self.model.tasks)), dtype=np.float32)
            if len(request.candidates):
                outputs, candidates = torch.cat(job.outputs), torch.from_numpy(request.candidates)
                device = self._pools.device.device
                scores = self._submit(lambda: self.model.score(outputs, candidates.to(device)).cpu())().numpy()
        except Exception as error:
            log.exception("scoring failed")
            return RequestError(Code.INTERNAL, f"scoring failed: {error}")
        cache = CacheInfo(lease.found_device, lease.found_host, lease.recomputed, lease.new, lease.total_length)
        return RankAnswer(scores, rank(scores, request.candidates, request.top_k), cache)

    # --- when something fails ----------------------------------------------------------------------------------------

    def _retry_without(self, failure: OnloadFailed, jobs: list[Job], pending: deque[Job]) -> None:
        for task in failure.tasks:
            self.manager.onload_failed(task)
        self._put_back(jobs, pending)

    def _retry_alone(
        self, error: Exception, jobs: list[Job], pending: deque[Job], outcomes: dict[int, Outcome]
    ) -> None:
        if len(jobs) > 1:
            for job in jobs:
                job.alone = True
            self._put_back(jobs, pending)
            return
        self._release(jobs)
        self._refuse(jobs, error, outcomes)

    def _put_back(self, jobs: list[Job], pending: deque[Job]) -> None:
        self._release(jobs)
        for job in jobs:
            job.attempts += 1
        pending.extendleft(reversed(jobs))

    def _release(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.lease is not None:
                self.manager.abort(job.lease)
            job.look_up, job.lease, job.outputs = None, None, []

    @staticmethod
    def _refuse(jobs: list[Job], error: Exception, outcomes: dict[int, Outcome]) -> None:
        for job in jobs:
            outcomes[job.index] = RequestError(Code.INTERNAL, f"the request could not be computed: {error}")

    # --- completions -------------------------------------------------------------------------------------------------

    def _await_completion(self) -> bool:
        """Wait for a transfer to give back what it holds; False if none is under way or none ends in time."""
        completion = self._completions.wait(self._transfer_timeout_s) if self.manager.tasks else None
        if completion is not None:
            self._complete(completion)
        return completion is not None

    def _complete(self, completion: Completion) -> None:
        task = completion.task
        if isinstance(task, OffloadTask):
            self.manager.offload_done(task, completion.failed)
        else:
            self._handles.pop(task)
            self.manager.onload_done(task, completion.failed)


def _looked_up(job: Job) -> LookUp:
    if job.look_up is None:
        raise RuntimeError("a job was leased before it was looked up")
    return job.look_up
