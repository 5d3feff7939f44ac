"""The inference pipeline: Algorithm 1 of the MTServe paper, step by step, for one wave of users at a time.

Every batch becomes waves of different users: requests of one user run in order of arrival, and what has no room now
runs in the next wave. All metadata is touched by the calling thread only. A failure ends in a recompute or in an error
for the one request it belongs to.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from mtserve_backend.admission import Admission
from mtserve_backend.cache.history import HistoryGap
from mtserve_backend.cache.records import Lease, LookUp, User, Visit
from mtserve_backend.compute import Compute, ComputeLost, Scores
from mtserve_backend.models.contract import RankingModel
from mtserve_backend.moves import Moves
from mtserve_backend.ranking import CacheInfo, Code, Outcome, RankAnswer, RankRequest, RequestError, rank
from mtserve_backend.steps import StepTimes, WaveReport
from mtserve_backend.transfer.onload import OnloadFailed
from mtserve_backend.transfer.pools import Pools
from mtserve_backend.transfer.streams import CopyStream, Stream, WaitTimeout
from mtserve_backend.transfer.view import CacheView
from mtserve_backend.waves import Job, Slice, slices, strip_cached_tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Streams:
    """The four streams of the paper (section 4.4), and the host's copying threads of a pageable host pool."""

    compute: Stream
    onload: CopyStream
    scatter: CopyStream
    offload: CopyStream
    load_workers: tuple[Stream, ...] = ()
    save_workers: tuple[Stream, ...] = ()

    def all(self) -> tuple[Stream, ...]:
        return (self.compute, self.onload, self.scatter, self.offload, *self.load_workers, *self.save_workers)


class Engine:
    """Owns model, manager, pools and streams. `serve` and `upkeep` are for one thread."""

    def __init__(
        self,
        model: RankingModel,
        admission: Admission,
        moves: Moves,
        pools: Pools,
        streams: Streams,
        pass_tokens: int,
        observe: Callable[[WaveReport], None] = lambda report: None,
        check_books: bool = False,
    ) -> None:
        self.compute = Compute(model, streams.compute, pools.device.device)
        self.manager = moves.manager
        self.moves = moves
        self.streams = streams
        self.observe = observe
        self._admission = admission
        self._pools = pools
        self._pass_tokens = pass_tokens
        self._check_books = check_books

    def serve(self, requests: Sequence[RankRequest]) -> list[Outcome]:
        """Answer a batch; outcome i belongs to request i."""
        outcomes: dict[int, Outcome] = {}
        pending: deque[Job] = deque()
        for index, request in enumerate(requests):
            try:
                self._admission.check(request)
            except RequestError as refusal:
                outcomes[index] = refusal
            else:
                pending.append(Job(index, request, self._admission.embedded(request.candidates)))
        while pending:
            self.upkeep()
            self._serve_wave(pending, outcomes)
        if self._check_books:
            self.manager.check()
        return [outcomes[index] for index in range(len(requests))]

    def upkeep(self) -> None:
        """Take in what the copying threads report, and give them what is waiting."""
        self.moves.take_in()
        self.moves.save(self.manager.plan_offloads)

    def idle(self) -> None:
        """Work that no request should wait for: save the tails of users who will be evicted next."""
        self.upkeep()
        self.moves.save(self.manager.plan_tail_flushes)

    @property
    def broken(self) -> str | None:
        """Why the engine is not whole any more, or None."""
        dead = [stream.name for stream in self.streams.all() if stream.broken is not None]
        return f"the {' and '.join(dead)} stream died" if dead else None

    def close(self, timeout_s: float) -> None:
        """Stop the streams, all of them within `timeout_s`. Raises `WaitTimeout` naming those that do not stop."""
        deadline = time.monotonic() + timeout_s
        late: list[str] = []
        for stream in self.streams.all():
            with suppress(WaitTimeout):
                stream.close(0)  # told first, all of them, so that they end side by side
        for stream in self.streams.all():
            try:
                stream.close(max(0.0, deadline - time.monotonic()))
            except WaitTimeout:
                late.append(stream.name)
        if late:
            raise WaitTimeout(f"the {' and '.join(late)} stream did not finish its work within {timeout_s:g} s")

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def _serve_wave(self, pending: deque[Job], outcomes: dict[int, Outcome]) -> None:
        """Run a wave taken from the front of `pending`; what does not fit, or must run again, is put back there."""
        steps = StepTimes()
        with steps.step(1):
            wave = self._look_up(pending, outcomes)
        with steps.step(2):
            jobs = self._prepare(wave, pending)
            leases = [job.lease for job in jobs if job.lease is not None]
            self.moves.start_onloads(leases)
        row_count = 0
        try:
            with steps.step(3):
                work = [
                    strip_cached_tokens(job, job.lease, self._admission.embedded, self.compute.model.scores_last_row)
                    for job in jobs
                    if job.lease
                ]
                # Users whose keys are on the device compute while the others' are loaded.
                work.sort(key=lambda rows: self._waits(rows.lease))
            for part in slices(work, self._pass_tokens, waits=self._waits):
                with steps.step(4):
                    embedded = self.compute.embed(part)
                with steps.step(5):
                    view = self._view(part)
                with steps.step(4):
                    x = embedded()
                # Step 6, to await the metadata, is nothing here: this thread has made it.
                with steps.step(7):
                    self.moves.scatter(leases)
                with steps.step(8):
                    outputs = self.compute.encode(x, view)()
                    part.keep_outputs(outputs)
                row_count += len(part)
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
            self.moves.scatter(leases)
        with steps.step(9):
            for lease in leases:
                self.manager.commit(lease)
            self.moves.save(self.manager.plan_offloads)
        with steps.step(10):
            for job, scores in zip(jobs, self.compute.scores(jobs), strict=True):
                outcomes[job.index] = self._answer(job, scores)
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
            settled = self._settle_at_once(job.request)
            if settled is not None:
                outcomes[job.index] = settled
                users.discard(user)
                continue
            try:
                job.look_up = self.manager.look_up(Visit(user, job.request.tokens))
            except HistoryGap as gap:
                outcomes[job.index] = RequestError(Code.NOT_FOUND, str(gap))
                users.discard(user)
            else:
                wave.append(job)
        pending.extendleft(reversed(stay))
        return wave

    def _settle_at_once(self, request: RankRequest) -> Outcome | None:
        """Requests that need no computing: cancelled, too late, or to forget."""
        if request.cancelled():
            return RequestError(Code.CANCELLED, "the request was cancelled before it was computed")
        if request.deadline is not None and time.monotonic() > request.deadline:
            return RequestError(Code.UNAVAILABLE, "the request's time was over before it was computed")
        return self._forget(request.user) if request.forget else None

    def _forget(self, user: User) -> Outcome:
        self.manager.forget(user)
        while self.manager.touched(user):
            if not self.moves.await_one():
                return RequestError(
                    Code.UNAVAILABLE,
                    "the user is forgotten, but a copy that is under way still holds some of their state; "
                    "send the request again to learn when it is gone",
                )
        self.moves.zero_freed()
        self.compute.settle()
        return RankAnswer(self.compute.no_scores(), np.zeros(0, dtype=np.int64), CacheInfo(0, 0, 0, 0, 0))

    def _prepare(self, wave: list[Job], pending: deque[Job]) -> list[Job]:
        """Lease pages, users on the device first: they need the fewest, and must not be evicted by the others.

        A job without room makes the last of the wave wait for the next one, or waits itself if it is the last.
        """
        waiting = deque(sorted(wave, key=lambda job: not self._resident(job)))
        self.manager.make_room(_looked_up(job) for job in waiting if self._cacheable(job))
        jobs: list[Job] = []
        deferred: list[Job] = []
        while waiting:
            job = waiting.popleft()
            job.lease = self._lease(job)
            if job.lease is not None:
                job.note_new()
                jobs.append(job)
            elif waiting:
                deferred.append(self._forgo(waiting.pop()))
                waiting.appendleft(job)
            elif jobs:
                deferred.append(self._forgo(job))
            elif self.moves.await_one():
                waiting.append(job)
            else:
                job.lease = self.manager.prepare_uncached(_looked_up(job))
                job.note_new()
                jobs.append(job)
        pending.extendleft(sorted(deferred, key=lambda job: job.index, reverse=True))
        return jobs

    def _lease(self, job: Job) -> Lease | None:
        """None: no room at present. A job that nothing is kept for, or that failed before, is never in want of room."""
        look_up = _looked_up(job)
        return self.manager.prepare(look_up) if self._cacheable(job) else self.manager.prepare_uncached(look_up)

    def _cacheable(self, job: Job) -> bool:
        return job.request.user is not None and bool(self.manager.geometry.device_pages) and job.attempts <= 1

    def _forgo(self, job: Job) -> Job:
        self.manager.forgo(_looked_up(job))
        job.look_up = None
        return job

    @staticmethod
    def _resident(job: Job) -> bool:
        return _looked_up(job).record.device_length > 0

    def _waits(self, lease: Lease) -> bool:
        """Whether some of the lease's keys are still on their way."""
        handle = self.moves.handle(lease)
        return handle is not None and not handle.arrived

    def _view(self, part: Slice) -> CacheView:
        handles = [handle for rows, _, _ in part.parts if (handle := self.moves.handle(rows.lease)) is not None]
        return CacheView(
            self._pools.device,
            self.compute.model.kv_shape,
            part.placements(),
            handles,
            self.streams.compute,
            self._pass_tokens,
        )

    @staticmethod
    def _answer(job: Job, scores: Scores | Exception) -> Outcome:
        lease, request = job.lease, job.request
        assert lease is not None  # committed just now
        if isinstance(scores, Exception):
            return RequestError(Code.INTERNAL, f"scoring failed: {scores}")
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


def _looked_up(job: Job) -> LookUp:
    if job.look_up is None:
        raise RuntimeError("a job was leased before it was looked up")
    return job.look_up
