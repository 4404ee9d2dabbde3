"""Running requests of decoupled models: each pulls responses from its model and passes them to the loop.

A runner starts them; the model runs on the thread or the event loop of its instance. A model that is faster than its
caller reads has to wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from isochrone.clock import now_ns
from isochrone.worker.execution.instances.batch import as_model_error

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.execution.instances.instance import Instance

#: Limit of concurrent requests of an asynchronous decoupled model on one instance.
_MAX_STREAMS = 64
#: Responses of one request that the loop may not have taken yet before the model has to wait.
RESPONSES_AHEAD = 16

#: A stream has ended: with an error, or with a last response, or without any.
StreamOver = Callable[["InferRequest", "IsochroneError | None", "Tensors | None"], None]


class Streams:
    """The streams of one model version. On the loop's thread."""

    def __init__(
        self,
        over: StreamOver,
        freed: Callable[[Instance], None],
    ) -> None:
        #: Called when a stream has ended, unless it was stopped.
        self._over = over
        #: Called before that: the instance can take another stream.
        self._freed = freed
        self._running: dict[InferRequest, StreamRun] = {}
        #: Stopped streams that are still inside the model.
        self._stopped: set[StreamRun] = set()

    def start(self, instance: Instance, request: InferRequest) -> bool:
        """Starts a stream; returns whether the instance has room for another."""
        run = self._running[request] = StreamRun(instance, request, self._ended)
        instance.streams += 1
        instance.submit(run.run)
        # A generator occupies its thread; asynchronous generators share an event loop.
        return instance.executable.is_async and instance.streams < _MAX_STREAMS

    def overdue(self, now: int, limit_ns: int) -> list[InferRequest]:
        """Requests whose model has taken longer than the limit for a response."""
        return [
            request for request, run in self._running.items() if run.requested_at and now - run.requested_at >= limit_ns
        ]

    def stop(self, request: InferRequest, now: int) -> None:
        """Pulls nothing more for a request; its end is not reported."""
        run = self._running.pop(request)
        run.stopped_at = now
        self._stopped.add(run)
        run.stop()

    def stuck(self, now: int, limit_ns: int) -> set[Instance]:
        """Instances that a stopped stream blocks.

        An asynchronous model ends when it is cancelled; if it has not after the limit, it blocks its event loop.
        """
        return {
            run.instance
            for run in self._stopped
            if not run.instance.abandoned and (not run.instance.executable.is_async or now - run.stopped_at >= limit_ns)
        }

    def on(self, instance: Instance) -> list[InferRequest]:
        return [request for request, run in self._running.items() if run.instance is instance]

    def all(self) -> list[InferRequest]:
        return list(self._running)

    def _ended(self, run: StreamRun, error: IsochroneError | None) -> None:
        run.instance.streams -= 1
        self._freed(run.instance)
        if run.stopped:
            self._stopped.discard(run)
        else:
            del self._running[run.request]
            self._over(run.request, error, None)


class StreamRun:
    """One request inside its model."""

    __slots__ = (
        "_async_credit",
        "_credit",
        "_ended",
        "_task",
        "instance",
        "request",
        "requested_at",
        "stopped",
        "stopped_at",
    )

    def __init__(
        self,
        instance: Instance,
        request: InferRequest,
        ended: Callable[[StreamRun, IsochroneError | None], None],
    ) -> None:
        self.instance = instance
        self.request = request
        self._ended = ended
        self._credit = threading.Semaphore(RESPONSES_AHEAD)
        self._async_credit: asyncio.Semaphore | None = None
        self._task: asyncio.Task[Any] | None = None
        #: When the next response was requested of the model; 0: the model waits for the caller.
        self.requested_at = 0
        #: The request was failed by the runner: nothing more is pulled, and the end is not reported.
        self.stopped = False
        self.stopped_at = 0

    def stop(self) -> None:
        """From the loop's thread."""
        self.stopped = True
        if self.instance.executable.is_async:
            try:
                self.instance.async_loop().call_soon_threadsafe(self._cancel)
            except RuntimeError:  # that loop has ended
                pass

    def _is_stopped(self) -> bool:
        return self.stopped or self.request.cancelled

    # On the instance's thread, or on its own loop's.

    def run(self) -> None:
        request = self.request
        request.compute_start = request.infer_start = self.requested_at = now_ns()
        try:
            responses = self.instance.executable.stream(request.inputs, request.plan.parameters)
            if hasattr(responses, "__anext__"):
                loop = self.instance.async_loop()
                asyncio.run_coroutine_threadsafe(self._pull_async(cast(AsyncIterator[Any], responses)), loop)
                return
            self._pull(cast(Iterator[Any], responses))
        except BaseException as error:
            self._end(as_model_error(error, request))
            return
        self._end(None)

    def _pull(self, responses: Iterator[Tensors]) -> None:
        try:
            for outputs in responses:
                self.requested_at = 0
                while not self._credit.acquire(timeout=0.5):
                    if self._is_stopped():
                        return
                if self._is_stopped():
                    return
                self.instance.call_loop(self._emit, outputs)
                self.requested_at = now_ns()
        finally:
            close = getattr(responses, "close", None)
            if close is not None:
                close()

    async def _pull_async(self, responses: AsyncIterator[Tensors]) -> None:
        error = None
        self._task = asyncio.current_task()
        self._async_credit = asyncio.Semaphore(RESPONSES_AHEAD)
        try:
            # A stream that was stopped before its task existed was not cancelled.
            if not self._is_stopped():
                async for outputs in responses:
                    self.requested_at = 0
                    await self._async_credit.acquire()
                    if self._is_stopped():
                        break
                    self.instance.call_loop(self._emit, outputs)
                    self.requested_at = now_ns()
        except BaseException as raised:
            error = as_model_error(raised, self.request)
        try:
            close = getattr(responses, "aclose", None)
            if close is not None:
                await close()
        except BaseException as raised:
            error = error or as_model_error(raised, self.request)
        self._end(error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, error: IsochroneError | None) -> None:
        self.instance.call_loop(self._over, error)

    # On the loop's thread.

    def _emit(self, outputs: Tensors) -> None:
        request = self.request
        if not self._is_stopped():
            request.emit(outputs)
        if request.is_congested and not self._is_stopped():
            request.when_writable(self._more)
        else:
            self._more()

    def _more(self) -> None:
        self._credit.release()
        if self._async_credit is not None:
            try:
                self.instance.async_loop().call_soon_threadsafe(self._async_credit.release)
            except RuntimeError:  # that loop has ended
                pass

    def _over(self, error: IsochroneError | None) -> None:
        self.request.infer_end = self.request.compute_end = now_ns()
        self._ended(self, error)
