"""The runner of sequence models: it takes batches from ``batcher`` and runs them on their instances.

A run that exceeds ``execution_timeout_ms`` is abandoned with its instance, and every sequence there ends: its next
request must carry START. Runs on the loop's thread, except ``_run``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError, ModelFailed
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.execution.instances.batch import answer, as_model_error
from isochrone.worker.execution.instances.replacement import MakeInstance, discard
from isochrone.worker.execution.runner import Runner
from isochrone.worker.scheduling.alarm import Alarm
from isochrone.worker.sequences.batcher import SequenceBatch, SequenceBatcher
from isochrone.worker.sequences.rows import gathered_states, run_rows

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.execution.instances.instance import Instance
    from isochrone.worker.execution.runner_context import RunnerContext


class SequenceRunner(Runner):
    """Runs one version of a model that keeps state between the requests of a sequence."""

    def __init__(self, context: RunnerContext, batcher: SequenceBatcher, batched: bool) -> None:
        super().__init__(context)
        self._batcher = batcher
        self._batched = batched
        self._alarm = Alarm(self._loop, self._alarm_rang)
        self._busy: list[SequenceBatch | None] = []
        #: Start of the current run on each instance.
        self._since: list[int] = []
        #: Numbers of abandoned instances that have not been replaced yet.
        self._lost: set[int] = set()

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        self._busy = [None] * len(instances)
        self._since = [0] * len(instances)

    @property
    def pending(self) -> int:
        return self._batcher.pending()

    def estimated_wait(self, now: int) -> int:
        return self.curve.estimate(1) if any(self._busy) else 0

    def estimated_run(self) -> int:
        return self.curve.estimate(1)

    def submit(self, request: InferRequest) -> None:
        if self._rejection is not None:
            raise self._rejection
        now = now_ns()
        request.enqueued = now
        instance = self._batcher.push(request, now)
        if instance is not None and self._busy[instance] is None:
            self._start(instance, now)
        self._reject(self._batcher.expire(now))
        self._set_alarm()

    def _alarm_rang(self) -> None:
        now = now_ns()
        self._reject(self._batcher.drop_cancelled(now))
        self._start_all(now)

    def _start_all(self, now: int) -> None:
        for index in range(len(self.instances)):
            if self._busy[index] is None and index not in self._lost:
                self._start(index, now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        wake = self._batcher.wake_at()
        if wake is not None and self._rejection is None:
            self._alarm.set(max(wake, 1))

    def _start(self, index: int, now: int) -> None:
        batch = self._batcher.take(index, now)
        if batch is None:
            return
        for request in batch.requests:
            request.dispatched = now
        self._busy[index] = batch
        self._since[index] = now
        instance = self.instances[index]
        instance.submit(lambda: self._run(instance, batch))

    def _run(self, instance: Instance, batch: SequenceBatch) -> None:
        """On the instance's thread."""
        marks = [now_ns(), 0, 0, 0]
        outputs: Tensors | None = None
        #: Of each request; None: they are rows of ``outputs``.
        results: list[Tensors] | None = None
        error: IsochroneError | None = None
        try:
            inputs = batch.inputs()
            marks[1] = now_ns()
            if instance.executable.takes_requests:
                states = self._batcher.state_outputs
                results = run_rows(instance.executable, batch, inputs, states, self._batched)
                outputs = gathered_states(results, batch, states, self._batched)
            else:
                outputs = instance.executable.execute(inputs, None)
            marks[2] = now_ns()
        except BaseException as raised:
            error = as_model_error(raised, batch.requests[0])
            marks[1] = marks[1] or now_ns()
            marks[2] = marks[2] or now_ns()
        marks[3] = now_ns()
        instance.call_loop(self._finished, instance, batch, outputs, results, error, marks)

    def _finished(
        self,
        instance: Instance,
        batch: SequenceBatch,
        outputs: Tensors | None,
        results: list[Tensors] | None,
        error: IsochroneError | None,
        marks: list[int],
    ) -> None:
        if instance.abandoned:
            # Its requests were answered when it was abandoned.
            self._replacements.ended(instance)
            return
        self._busy[batch.instance] = None
        now = now_ns()
        try:
            if outputs is None:
                self._batcher.failed(batch, now)
            else:
                self._batcher.finished(batch, outputs, now)
        except ModelFailed as failure:
            error = failure
        self._reject(self._batcher.expire(now))
        self._start_all(now)
        if results is None:
            results = [self._row(outputs or {}, batch.row_of(index)) for index in range(len(batch.requests))]
        self._settle_traced(batch, results, error, marks)

    def _row(self, outputs: Tensors, row: int) -> Tensors:
        return {name: array[row : row + 1] for name, array in outputs.items()} if self._batched else outputs

    def _settle_traced(
        self, batch: SequenceBatch, results: list[Tensors], error: IsochroneError | None, marks: list[int]
    ) -> None:
        trace = self._statistics.trace
        if trace is not None:
            trace.batch_answered(batch.requests, len(batch.requests))
        self._settle(batch, results, error, marks)
        if trace is not None:
            trace.batch_over()

    def _settle(
        self, batch: SequenceBatch, results: list[Tensors], error: IsochroneError | None, marks: list[int]
    ) -> None:
        if error is None:
            self.curve.observe(len(batch.requests), marks[3] - marks[0])
            self._statistics.record_batch(
                len(batch.requests), marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]
            )
        hidden = set(self._batcher.state_outputs)
        for position, request in enumerate(batch.requests):
            request.compute_start, request.infer_start, request.infer_end, request.compute_end = marks
            if error is not None:
                self._fail(request, error)
                continue
            wanted = request.plan.outputs
            outputs_of_row = {
                name: array
                for name, array in results[position].items()
                if (name in wanted if wanted is not None else name not in hidden)
            }
            self._statistics.record_success(request, marks[3], 1)
            self._request_ended()
            if request.cancelled:
                request.dropped()
            else:
                answer(request, outputs_of_row, parameters_of(results[position]))

    def _reject(self, rejections: list[tuple[InferRequest, IsochroneError]]) -> None:
        for request, error in rejections:
            self._fail(request, error)

    def check_stuck(self, now: int) -> None:
        """Abandons runs that exceed their limit. Called about ten times a second."""
        limit_ns = self._execution_timeout_ns
        if not limit_ns:
            return
        for index, batch in enumerate(self._busy):
            if batch is not None and now - self._since[index] >= limit_ns:
                self._abandon(index, batch)

    def _abandon(self, index: int, batch: SequenceBatch) -> None:
        error = self._took_too_long("the instance was abandoned and is replaced, and its sequences have ended")
        self._busy[index] = None
        self._lost.add(index)
        queued = self._batcher.lose(index)
        for request in (*batch.requests, *queued):
            self._fail(request, error)
        self._replacements.abandon(self.instances[index], lambda made: self._replaced(index, made))

    def _replaced(self, index: int, made: Instance | IsochroneError) -> None:
        """The instance was replaced, or cannot be."""
        if isinstance(made, IsochroneError):
            if len(self._lost) == len(self.instances) and self._rejection is None:
                self.fail_all(made)
            return
        if self._rejection is not None:
            discard(made)
            return
        self.instances[index] = made
        self._lost.discard(index)
        now = now_ns()
        self._batcher.restore(index, now)
        self._reject(self._batcher.expire(now))
        self._start_all(now)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        error = self._rejection = error or self._unloading()
        for request in self._batcher.clear():
            self._fail(request, error)
        for index, batch in enumerate(self._busy):
            if batch is not None:
                self.instances[index].abandoned = True
                for request in batch.requests:
                    self._fail(request, error)

    def release(self) -> None:
        super().release()
        self._alarm.close()

    def close(self) -> None:
        for index, instance in enumerate(self.instances):
            # An abandoned instance is closed when its run ends.
            if index not in self._lost:
                instance.close()
