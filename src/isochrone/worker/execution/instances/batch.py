"""One batch in an executable: gather inputs, run, split outputs.

Runs on an instance's thread, or inline on the loop's; it touches no state but its own. One caller's bad input never
fails the other requests of its batch: a batch that raises is run again request by request. A run that hung on the
loop's thread is not repeated: it would hang again. Nor is one that lost the device of this process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from isochrone.clock import NEVER, now_ns
from isochrone.errors import Internal, IsochroneError, ModelFailed, Unavailable
from isochrone.protocol.messages import NO_PARAMETERS
from isochrone.protocol.response_outputs import parameters_of
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.tensors.result_rows import check_rows
from isochrone.worker.execution.inline.watchdog import InlineHang

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Parameters, Tensors
    from isochrone.worker.backends.interface import Answer, Executable, TakeAnswers

log = structlog.get_logger(__name__)

# Longest pause of an isolated model's process that the other requests of a failed batch wait for.
_LONGEST_PAUSE_SECONDS = 0.2


class BatchBuffers:
    """Buffers for the inputs of batches, reused: new memory pages cost more than the copy."""

    __slots__ = ("_arrays", "_max_rows")

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._arrays: dict[tuple[str, tuple[int, ...], Any], Any] = {}

    def gather(self, name: str, parts: list[Any], rows: int) -> Any:
        first = parts[0]
        key = (name, first.shape[1:], first.dtype)
        buffer = self._arrays.get(key)
        if buffer is None:
            if len(self._arrays) >= 16:
                self._arrays.clear()
            buffer = self._arrays[key] = np.empty((self._max_rows, *first.shape[1:]), first.dtype)
        return np.concatenate(parts, out=buffer[:rows])


class Batch:
    """Requests that run together, and their results."""

    __slots__ = (
        "compute_end",
        "compute_start",
        "dropped",
        "error",
        "errors",
        "expected",
        "flight",
        "hung",
        "infer_end",
        "infer_start",
        "instance",
        "latest_start",
        "occupied",
        "requests",
        "results",
        "retried",
        "rows",
        "was_polled",
    )

    def __init__(self, requests: list[InferRequest], rows: int) -> None:
        self.requests = requests
        self.rows = rows
        #: Requests that were cancelled before the run: they cost no compute.
        self.dropped: list[InferRequest] = []
        #: Outputs of each request; None where it failed, or where the executable answers itself.
        self.results: list[Tensors | None] = []
        self.errors: dict[int, IsochroneError] = {}
        #: The error of the whole batch.
        self.error: IsochroneError | None = None
        #: The exception of the joint run, if the requests then ran one by one.
        self.retried: BaseException | None = None
        #: The watchdog interrupted an inline run.
        self.hung = False
        #: What ``launch_batch`` of an executable that overlaps returned, or the error that it raised.
        self.flight: Any = None
        #: The event loop saw it end, and nothing was behind it.
        self.was_polled = False
        #: ns that it occupied its instance, including the hand-over to the thread; 0: it ran inline.
        self.occupied = 0
        #: ns that it was expected to run; 0: not known. And the number of its instance; -1: it ran inline.
        self.expected = 0
        self.instance = -1
        #: A batch that waits behind another does not start after this instant: a request in it would be late.
        self.latest_start = NEVER
        self.compute_start = self.infer_start = self.infer_end = self.compute_end = 0

    def run(self, executable: Executable, buffers: BatchBuffers | None) -> None:
        """Fills ``results``; never raises."""
        self.compute_start = now_ns()
        self._drop_cancelled()
        requests = self.requests
        if not requests:
            self.infer_start = self.infer_end = self.compute_end = self.compute_start
            return
        try:
            if executable.takes_requests:
                self._run_requests(executable)
            elif len(requests) == 1:
                request = requests[0]
                self.infer_start = self.compute_start
                outputs = executable.execute(request.inputs, request.plan.outputs)
                self.infer_end = now_ns()
                self.results.append(outputs)
            else:
                self._run_together(executable, buffers)
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: a model that calls exit() must not stop the server.
            self._failed(executable, error)
        self.compute_end = now_ns()
        if not self.infer_end:
            self.infer_end = self.compute_end
        if not self.infer_start:
            self.infer_start = self.compute_start

    def launch(self, executable: Executable) -> None:
        """Starts a run of an executable that overlaps; never raises. ``collect`` ends it."""
        self.compute_start = now_ns()
        self._drop_cancelled()
        if self.requests:
            try:
                self.flight = executable.launch_batch(self.requests, self.rows)
            except BaseException as error:
                self.flight = error
        self.infer_start = now_ns()

    def is_complete(self, executable: Executable) -> bool:
        """Whether ``collect`` would end at once, and well, after ``launch``."""
        if isinstance(self.flight, BaseException):
            return False
        try:
            return not self.requests or executable.batch_is_complete(self.flight)
        except Exception:  # ``collect`` gets it, too
            return False

    def collect(self, executable: Executable) -> None:
        """Fills ``results`` after ``launch``; never raises."""
        if self.requests:
            try:
                if isinstance(self.flight, BaseException):
                    raise self.flight
                self.results.extend(executable.collect_batch(self.flight))
            except BaseException as error:
                self._failed(executable, error)
            self.flight = None
        self.infer_end = self.compute_end = now_ns()

    def begin(self, executable: Executable, done: TakeAnswers) -> bool:
        """Starts a run that needs no thread; False: ``run`` has to do it. ``complete`` takes the answers."""
        for request in self.requests:
            if request.cancelled:
                return False
        self.compute_start = self.infer_start = now_ns()
        return executable.begin_requests(self.requests, done)

    def complete(self, answers: list[Answer]) -> None:
        """Fills ``results`` after ``begin``."""
        self._take_answers(answers)
        self.infer_end = self.compute_end = now_ns()

    def _drop_cancelled(self) -> None:
        """Drops requests that were cancelled while the batch waited behind another."""
        if any(request.cancelled for request in self.requests):
            cancelled: list[InferRequest] = []
            stay: list[InferRequest] = []
            for request in self.requests:
                # Read once: a request that is cancelled meanwhile must be in exactly one of the lists.
                (cancelled if request.cancelled else stay).append(request)
            # In this order, for ``all_requests``.
            self.dropped = cancelled
            self.requests = stay
            self.rows = sum(request.plan.batch_size for request in stay)

    def all_requests(self) -> list[InferRequest]:
        """Every request of the batch, once; safe on the loop's thread at any point of the run."""
        return list(dict.fromkeys([*self.requests, *self.dropped]))

    def _run_together(self, executable: Executable, buffers: BatchBuffers | None) -> None:
        requests = self.requests
        inputs: Tensors = {}
        for name in requests[0].inputs:
            parts = [request.inputs[name] for request in requests]
            if buffers is not None and parts[0].dtype.kind != "O":
                inputs[name] = buffers.gather(name, parts, self.rows)
            else:
                inputs[name] = np.concatenate(parts)
        names = requests[0].plan.outputs
        for request in requests:
            if request.plan.outputs != names:
                names = None
                break
        self.infer_start = now_ns()
        outputs = executable.execute(inputs, names)
        self.infer_end = now_ns()
        check_rows(outputs.items(), self.rows)
        start = 0
        for request in requests:
            stop = start + request.plan.batch_size
            own = request.plan.outputs if names is None else None
            self.results.append(
                {name: array[start:stop] for name, array in outputs.items() if own is None or name in own}
            )
            start = stop

    def _run_requests(self, executable: Executable) -> None:
        """Runs the requests as they are. One without result and error is answered by the executable itself."""
        self.infer_start = self.compute_start
        answers = executable.execute_requests(self.requests)
        self.infer_end = now_ns()
        self._take_answers(answers)

    def _take_answers(self, answers: list[Answer]) -> None:
        for index, answer in enumerate(answers):
            if isinstance(answer, IsochroneError):
                self.errors[index] = answer
                self.hung = self.hung or isinstance(answer.__cause__, InlineHang)
                self.results.append(None)
            else:
                self.results.append(answer)

    def _failed(self, executable: Executable, error: BaseException) -> None:
        self.results.clear()
        requests = self.requests
        self.hung = isinstance(error, InlineHang) or isinstance(error.__cause__, InlineHang)
        if len(requests) == 1 or self.hung or isinstance(error, DeviceLost):
            self.error = as_model_error(error, requests[0])
            return
        self.retried = error
        for index, request in enumerate(requests):
            try:
                outputs = _run_alone(executable, request)
                check_rows(outputs.items(), request.plan.batch_size)
                self.results.append(outputs)
            except BaseException as own:
                self.hung = isinstance(own, InlineHang) or isinstance(own.__cause__, InlineHang)
                self.errors[index] = as_model_error(own, request)
                self.results.append(None)
                if self.hung:
                    for left in range(index + 1, len(requests)):
                        self.errors[left] = self.errors[index]
                        self.results.append(None)
                    return


def _run_alone(executable: Executable, request: InferRequest) -> Tensors:
    """Runs one request of a batch that failed.

    A process that died in the batch and then in the request that caused it is not started again at once. The requests
    behind that one are not to blame: they wait for the pause, if it is short.
    """
    try:
        return executable.execute(request.inputs, request.plan.outputs)
    except Unavailable as error:
        if not 0 < error.retry_after <= _LONGEST_PAUSE_SECONDS:
            raise
        time.sleep(error.retry_after)
        return executable.execute(request.inputs, request.plan.outputs)


def answer(request: InferRequest, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
    """Completes a request; an exception while its answer is written must not affect the other requests."""
    try:
        if type(outputs) is not dict and not parameters:
            parameters = parameters_of(outputs)
        request.complete(outputs, parameters)
    except Exception as error:
        log.error("an answer could not be written", model=request.plan.model_name, exc_info=error)
        request.fail(Internal(f"{type(error).__name__}: {error}"))


def as_model_error(error: BaseException, request: InferRequest) -> IsochroneError:
    """The error of a request whose model raised."""
    if isinstance(error, IsochroneError):
        return error
    failed = ModelFailed(f"model '{request.plan.model_name}' failed: {type(error).__name__}: {error}")
    # The log shows its traceback.
    failed.__cause__ = error
    return failed
