"""The runner of decoupled models: each request is a run of its own, with any number of responses.

``execution_timeout_ms`` limits the time for one response: a stream may last, but not hang. Runs on the loop's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.execution.queued_runner import QueuedRunner
from isochrone.worker.execution.streams.pushed_streams import PushedStreams
from isochrone.worker.execution.streams.streams import Streams

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.interface import PostingOutlet
    from isochrone.worker.execution.instances.instance import Instance
    from isochrone.worker.execution.instances.replacement import MakeInstance
    from isochrone.worker.execution.runner_context import RunnerContext


class StreamRunner(QueuedRunner):
    """Runs one version of a decoupled model."""

    def __init__(self, context: RunnerContext) -> None:
        rules = replace(context.rules, max_rows=1, preferred=(), delay_ns=0)
        super().__init__(replace(context, rules=rules))
        self._streams: Streams | PushedStreams = Streams(self._stream_over, self._stream_freed)
        self._pump_scheduled = False

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        super().start(instances, replacement)
        if instances[0].executable.takes_requests:
            self._streams = PushedStreams(self._stream_over, self._stream_freed)

    def outlet_of(self, request: InferRequest) -> PostingOutlet:
        assert isinstance(self._streams, PushedStreams)
        return self._streams.outlet_of(request)

    def submit(self, request: InferRequest) -> None:
        """Queues a request, or raises."""
        if self._rejection is not None:
            raise self._rejection
        self.queue.push(request, now_ns())
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        while self._idle and self.queue.pending:
            requests = self.queue.take(now_ns())
            self._fail_rejected()
            if not requests:
                break
            for request in requests:
                instance = self._idle[-1]
                if not self._streams.start(instance, request):
                    self._idle.remove(instance)

    def _stream_freed(self, instance: Instance) -> None:
        if instance.abandoned:
            if not instance.streams:
                self._replacements.ended(instance)
        elif instance not in self._idle:
            self._idle.append(instance)
        if self.queue.pending:
            self._schedule_pump()

    def _stream_over(self, request: InferRequest, error: IsochroneError | None, last: Tensors | None) -> None:
        if error is not None:
            self._fail(request, error)
            return
        self._statistics.record_batch(1, 0, request.infer_end - request.infer_start, 0)
        self._statistics.record_success(request, now_ns(), 1)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        elif last is None:
            request.finish()
        else:
            request.finish_with(last, parameters_of(last))

    def check_stuck(self, now: int) -> None:
        """Rejects late requests and abandons runs that exceed their limit. Called about ten times a second."""
        if self.queue.requests and not self._idle:
            self.queue.drop_late(now)
            self._fail_rejected()
        limit_ns = self._execution_timeout_ns
        if not limit_ns:
            return
        error = self._took_too_long("the stream was stopped")
        for request in self._streams.overdue(now, limit_ns):
            self._stop(request, error, now)
        for instance in self._streams.stuck(now, limit_ns):
            error = self._took_too_long("the instance was abandoned and is replaced")
            for request in self._streams.on(instance):
                self._stop(request, error, now)
            self._replace(instance)

    def _stop(self, request: InferRequest, error: IsochroneError, now: int) -> None:
        self._streams.stop(request, now)
        self._fail(request, error)

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails queued and running requests: the version is being unloaded and does not wait longer."""
        error = self._rejection = error or self._unloading()
        for request in self.queue.clear():
            self._fail(request, error)
        for instance in self.instances:
            if instance.streams:
                instance.abandoned = True
        for request in self._streams.all():
            self._stop(request, error, now_ns())
