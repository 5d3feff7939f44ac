"""The model on the compute stream: work is issued there, its results are asked for here, within a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mtserve_backend.kernels import copies
from mtserve_backend.models.contract import RankingModel
from mtserve_backend.transfer.streams import Stream, WaitTimeout
from mtserve_backend.transfer.view import CacheView
from mtserve_backend.waves import Job, Slice

T = TypeVar("T")
Scores = npt.NDArray[np.float32]

log = logging.getLogger(__name__)

# No slice of work takes this long; past it the compute stream is taken for dead.
COMPUTE_LIMIT_S = 600.0


class ComputeLost(RuntimeError):
    """The compute stream does not answer any more."""


class Compute:
    """`embed` and `encode` issue, and return a call for the result, which raises what the work raised.

    A tensor that comes out is for the compute stream's own work: on a GPU its values may not be there yet.
    """

    def __init__(self, model: RankingModel, stream: Stream, device: torch.device) -> None:
        self.model = model
        self.stream = stream
        self._device = device

    def embed(self, part: Slice) -> Callable[[], torch.Tensor]:
        """`[rows, hidden]` of a slice."""
        return self._submit(lambda: self.model.embed(part.rows(self._device)))

    def encode(self, x: torch.Tensor, view: CacheView) -> Callable[[], torch.Tensor]:
        """All layers over embedded rows; raises `OnloadFailed` if keys did not arrive."""
        return self._submit(partial(self.model.encode, x, view))

    def settle(self) -> None:
        """Wait until all that was issued is done."""
        self.stream.record().wait(COMPUTE_LIMIT_S)

    def scores(self, jobs: Sequence[Job]) -> list[Scores | Exception]:
        """`[candidates, tasks]` of every job on the host, or what its scoring raised. One submission for all."""
        scored = [job for job in jobs if len(job.request.candidates)]
        results: dict[Job, torch.Tensor | Exception] = {}
        if scored:
            try:
                found = self._submit(lambda: [self._score(job) for job in scored], done=True)()
                results = dict(zip(scored, found, strict=True))
            except Exception as error:
                log.exception("scoring failed")
                results = dict.fromkeys(scored, error)
        return [self._on_host(results.get(job)) for job in jobs]

    def no_scores(self) -> Scores:
        """Of no candidates."""
        return np.zeros((0, len(self.model.tasks)), dtype=np.float32)

    def _score(self, job: Job) -> torch.Tensor | Exception:
        try:
            candidates = torch.from_numpy(job.candidates).to(self._device)
            return copies.to_host(self.model.score(torch.cat(job.outputs), candidates))
        except Exception as error:
            log.exception("scoring failed")
            return error

    def _on_host(self, found: torch.Tensor | Exception | None) -> Scores | Exception:
        """None: there was nothing to score."""
        if found is None:
            return self.no_scores()
        return found if isinstance(found, Exception) else found.numpy()

    def _submit(self, work: Callable[[], T], done: bool = False) -> Callable[[], T]:
        """With `done` the result is there when the device has done the work, and not only when it was issued."""
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                with torch.inference_mode():
                    results.append(work())
            except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
                errors.append(error)

        self.stream.submit(run)
        event = self.stream.record()

        def result() -> T:
            try:
                if done:
                    event.wait(COMPUTE_LIMIT_S)
                else:
                    event.issued(COMPUTE_LIMIT_S)
            except WaitTimeout as error:
                raise ComputeLost(str(error)) from error
            if errors:
                raise errors[0]
            return results[0]

        return result
