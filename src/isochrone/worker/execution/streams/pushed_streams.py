"""Running requests of decoupled models that push their responses: a model may send them from any thread, also after its
run has returned.

The counterpart of ``streams``, which pulls responses from a model. An instance is free when its run returns; a request
ends with its last response.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.execution.instances.batch import as_model_error
from isochrone.worker.execution.streams.streams import RESPONSES_AHEAD, StreamOver

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.interface import Answer, PostingOutlet
    from isochrone.worker.execution.instances.instance import Instance


class PushedStreams:
    """The streams of one model version. On the loop's thread; the interface is that of ``Streams``."""

    def __init__(self, over: StreamOver, freed: Callable[[Instance], None]) -> None:
        self._over = over
        self._freed = freed
        self._running: dict[InferRequest, PushedStream] = {}
        #: Stopped streams whose run has not returned.
        self._stopped: set[PushedStream] = set()

    def start(self, instance: Instance, request: InferRequest) -> bool:
        """Starts a stream; False: the instance has no room for another until its run returns."""
        stream = self._running[request] = PushedStream(instance, request, self._returned, self._ended)
        instance.streams += 1
        instance.submit(stream.run)
        return False

    def outlet_of(self, request: InferRequest) -> PostingOutlet:
        """From any thread of the model, at any time."""
        return self._running.get(request) or _NOWHERE

    def overdue(self, now: int, limit_ns: int) -> list[InferRequest]:
        """Requests whose model has taken longer than the limit for a response."""
        return [request for request, stream in self._running.items() if now - stream.sent_at >= limit_ns > 0]

    def stop(self, request: InferRequest, now: int) -> None:
        """Takes nothing more of a request; its end is not reported."""
        stream = self._running.pop(request)
        stream.stop(now)
        if not stream.has_returned:
            self._stopped.add(stream)

    def stuck(self, now: int, limit_ns: int) -> set[Instance]:
        """Instances that a stopped stream blocks."""
        return {stream.instance for stream in self._stopped if not stream.instance.abandoned}

    def on(self, instance: Instance) -> list[InferRequest]:
        return [request for request, stream in self._running.items() if stream.instance is instance]

    def all(self) -> list[InferRequest]:
        return list(self._running)

    def _returned(self, stream: PushedStream) -> None:
        """The run of a stream has returned; responses may follow."""
        stream.has_returned = True
        stream.instance.streams -= 1
        self._stopped.discard(stream)
        self._freed(stream.instance)

    def _ended(self, stream: PushedStream, error: IsochroneError | None, last: Tensors | None) -> None:
        if self._running.pop(stream.request, None) is not None:
            self._over(stream.request, error, last)


class _Nowhere:
    """The outlet of a request that was stopped before its model asked for one."""

    def send(self, answer: Answer, is_last: bool) -> None: ...

    def post(self, answer: Answer, taken: Callable[[], None]) -> None:
        taken()

    def is_cancelled(self) -> bool:
        return True


_NOWHERE = _Nowhere()


class PushedStream:
    """One request, and the outlet of its responses."""

    __slots__ = (
        "_credit",
        "_ended",
        "_is_over",
        "_returned",
        "has_returned",
        "instance",
        "request",
        "sent_at",
    )

    def __init__(
        self,
        instance: Instance,
        request: InferRequest,
        returned: Callable[[PushedStream], None],
        ended: Callable[[PushedStream, IsochroneError | None, Tensors | None], None],
    ) -> None:
        self.instance = instance
        self.request = request
        self._returned = returned
        self._ended = ended
        self._credit = threading.Semaphore(RESPONSES_AHEAD)
        #: It has ended, or was stopped: nothing more is taken.
        self._is_over = False
        self.has_returned = False
        #: When it began, or last sent a response.
        self.sent_at = now_ns()

    def stop(self, now: int) -> None:
        self._is_over = True
        self.sent_at = now

    # On the instance's thread.

    def run(self) -> None:
        request = self.request
        request.compute_start = request.infer_start = self.sent_at = now_ns()
        try:
            answer = self.instance.executable.execute_requests((request,))[0]
            if answer is not None:
                self.send(answer, True)
        except BaseException as error:
            self.send(as_model_error(error, request), True)
        self.instance.call_loop(self._returned, self)

    # From any thread of the model.

    def send(self, answer: Answer, is_last: bool) -> None:
        if isinstance(answer, IsochroneError):
            is_last = True
        if answer is not None and not is_last and not self.instance.executable.is_async:
            # A model that is faster than its caller reads has to wait. A coroutine must not: it shares its thread.
            while not self._credit.acquire(timeout=0.5):
                if self._is_over or self.request.cancelled:
                    return
        self.instance.call_loop(self._take, answer, is_last, self._credit.release)

    def post(self, answer: Answer, taken: Callable[[], None]) -> None:
        self.instance.call_loop(self._take, answer, isinstance(answer, IsochroneError), taken)

    def is_cancelled(self) -> bool:
        return self._is_over or self.request.cancelled

    # On the loop's thread.

    def _take(self, answer: Answer, is_last: bool, taken: Callable[[], None]) -> None:
        self.sent_at = now_ns()
        request = self.request
        if self._is_over:
            taken()
            return
        if is_last:
            self._is_over = True
            request.infer_end = request.compute_end = self.sent_at
            if isinstance(answer, IsochroneError):
                self._ended(self, answer, None)
            else:
                self._ended(self, None, answer)
            return
        if answer is None:
            return
        outputs = cast("Tensors", answer)
        if not request.cancelled:
            request.emit(outputs, parameters_of(outputs))
        if request.is_congested and not request.cancelled:
            request.when_writable(taken)
        else:
            taken()
