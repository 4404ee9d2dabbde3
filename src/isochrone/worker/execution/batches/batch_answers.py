"""Answers the requests of a batch that has run: in order where the model preserves it, and later where an executable
answers by itself.

On the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.worker.execution.batches.late_answers import LateAnswers
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.execution.instances.batch import Batch, answer
from isochrone.worker.scheduling.answer_order import AnswerOrder

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.statistics import ModelStatistics


class BatchAnswers:
    """The answers of one model version."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        statistics: ModelStatistics,
        failures: FailureLog,
        request_ended: Callable[[], None],
        send_failure: Callable[[InferRequest, IsochroneError], None],
        *,
        preserve_ordering: bool,
    ) -> None:
        #: The order of requests that are not answered; None: any order will do.
        self.order = AnswerOrder() if preserve_ordering else None
        #: Answers that executables send themselves.
        self.late = LateAnswers(loop, self._came_late)
        self._statistics = statistics
        self._failures = failures
        self._request_ended = request_ended
        self._send_failure = send_failure

    def settle(self, batch: Batch) -> None:
        """Answers the callers of a batch that has run."""
        trace, lines = self._statistics.trace, self._statistics.access_lines
        if trace is None and lines is None:
            self._settle(batch)
            return
        if trace is not None:
            trace.batch_answered(batch.requests, batch.rows)
        if lines is not None:
            lines.batch_rows = batch.rows
        self._settle(batch)
        if trace is not None:
            trace.batch_over()
        if lines is not None:
            lines.batch_rows = 0

    def _settle(self, batch: Batch) -> None:
        for request in batch.dropped:
            self.fail(request, Cancelled("the caller has gone"))
        if batch.error is not None:
            for request in batch.requests:
                _stamp(request, batch)
                self.fail(request, batch.error)
            return
        if batch.retried is not None:
            self._failures.batch_retried(batch)
        for index, request in enumerate(batch.requests):
            _stamp(request, batch)
            outputs = batch.results[index]
            if outputs is not None:
                self.late.forget(request)
                if self.order is None:
                    self._send(request, outputs, batch.compute_end)
                else:
                    self._release(request, outputs)
                continue
            error = batch.errors.get(index)
            if error is not None:
                self.fail(request, error)
            else:
                self.late.expect(request)

    def fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        if self.order is not None and request in self.order:
            self._release(request, error)
        else:
            self._send_failure(request, error)

    def _came_late(self, request: InferRequest, outcome: Tensors | IsochroneError) -> None:
        if isinstance(outcome, IsochroneError):
            self.fail(request, outcome)
        elif self.order is not None:
            self._release(request, outcome)
        else:
            self._send(request, outcome, now_ns())

    def _release(self, request: InferRequest, outcome: Tensors | IsochroneError) -> None:
        """preserve_ordering: an answer waits until the earlier requests are answered."""
        assert self.order is not None
        for ready, result in self.order.settle(request, outcome):
            if isinstance(result, IsochroneError):
                self._send_failure(ready, result)
            else:
                self._send(ready, result, ready.compute_end)

    def _send(self, request: InferRequest, outputs: Tensors, ended: int) -> None:
        self._statistics.record_success(request, ended, request.plan.batch_size)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            answer(request, outputs)


def _stamp(request: InferRequest, batch: Batch) -> None:
    request.compute_start = batch.compute_start
    request.infer_start = batch.infer_start
    request.infer_end = batch.infer_end
    request.compute_end = batch.compute_end
