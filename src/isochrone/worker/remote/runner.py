"""The runner of one version of a remote model: sends every request on at once, on the event loop.

What travels along: the time that is left of the deadline, the priority, the id, the parameters (those of a sequence
among them), the version, the versions of stages that the caller pins, and the trace context (that of its own span
if the model is traced). While time is left, a request of which nothing has run is sent to another endpoint; so is one
that an endpoint does not have the model for, or not the package to decompress. A request whose connection broke is sent
once more: its server may have died, perhaps by this request. Other failures are the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from isochrone.background_tasks import BackgroundTasks
from isochrone.client.address import Address
from isochrone.client.answers import Outputs
from isochrone.client.calls import InferCall, make_call
from isochrone.clock import MILLISECOND, NEVER, SECOND, now_ns
from isochrone.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    Internal,
    IsochroneError,
    ModelFailed,
    NotFound,
    QueueFull,
    Unavailable,
    UnsupportedEncoding,
)
from isochrone.protocol.headers.stages import STAGES_HEADER, write_stages
from isochrone.protocol.headers.timing import TIMING_HEADER
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.remote.endpoints import EndpointChoice
from isochrone.worker.remote.link_reports import LinkReports

if TYPE_CHECKING:
    from isochrone.models.signature import Signature
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.remote.settings import RemoteSettings
    from isochrone.worker.statistics import ModelStatistics

log = structlog.get_logger(__name__)

#: Weight of the latest answer in the estimate of a run.
_WEIGHT = 0.1


class Transport(Protocol):
    """The connections to one endpoint, of the client."""

    async def infer(self, call: InferCall, seconds: float | None) -> Outputs: ...

    async def is_ready(self, model: str, version: str, seconds: float | None) -> bool: ...

    async def close(self) -> None: ...


OpenTransport = Callable[[Address, "RemoteSettings"], Transport]


def open_transport(address: Address, settings: RemoteSettings) -> Transport:
    if address.is_grpc:
        from isochrone.client.grpc.async_transport import AsyncGrpcTransport

        return AsyncGrpcTransport(address, settings.certificates)
    from isochrone.client.http.async_transport import AsyncHttpTransport

    return AsyncHttpTransport(address, settings.certificates, settings.zstd_level)


class RemoteRunner:
    """Sends the requests of one version to its endpoints."""

    def __init__(
        self,
        name: str,
        settings: RemoteSettings,
        signature: Signature,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
        open_transport: OpenTransport = open_transport,
    ) -> None:
        self._name = name
        self._settings = settings
        self._outputs = signature.output_by_name
        self._is_batched = signature.max_batch_size > 0
        self._statistics = statistics
        self._request_ended = request_ended
        self._failures = FailureLog(name, statistics.model_version)
        self._choice = EndpointChoice(len(settings.endpoints))
        self._transports = [open_transport(address, settings) for address in settings.endpoints]
        self._running: dict[asyncio.Task[None], InferRequest] = {}
        self._closing = BackgroundTasks()
        self._estimate = 0.0
        self._rejection: IsochroneError | None = None
        self.link = LinkReports(name)

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferRequest) -> None:
        if self._rejection is not None:
            raise self._rejection
        if len(self._running) >= self._settings.max_in_flight:
            raise QueueFull(
                f"model '{self._name}': {len(self._running)} requests wait for its endpoints, and max_in_flight allows "
                "no more"
            ).not_begun()
        task = asyncio.ensure_future(self._run(request))
        self._running[task] = request
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        request = self._running.pop(task)
        if task.cancelled():  # before its first step
            self._fail(request, self._end_of(request))

    def _end_of(self, request: InferRequest) -> IsochroneError:
        """Why a task was cancelled."""
        if request.cancelled:
            return Cancelled("the caller has gone")
        return self._rejection or self._unloading()

    async def _run(self, request: InferRequest) -> None:
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        try:
            outputs = self._checked(request, await self._answer(request))
        except asyncio.CancelledError:
            self._fail(request, self._end_of(request))
            return
        except IsochroneError as error:
            # Answered first: those who watch the link may look for other requests that wait, and not find this one.
            self._fail(request, error)
            if _is_unreachable(error):
                self._report(self.link.unreachable)
            return
        except Exception as error:
            self._fail(request, Internal(f"model '{self._name}': {type(error).__name__}: {error}"))
            return
        now = request.infer_end = request.compute_end = now_ns()
        taken = now - request.infer_start
        self._estimate += _WEIGHT * (taken - self._estimate) if self._estimate else taken
        rows = request.plan.batch_size
        self._statistics.record_batch(rows, 0, taken, 0)
        self._statistics.record_success(request, now, rows)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.complete(outputs)

    async def _answer(self, request: InferRequest) -> Outputs:
        call = self._call(request)
        deadline = min(request.deadline, request.infer_start + self._settings.answer_timeout_ns)
        tried: list[int] = []
        losses = 0
        error: IsochroneError | None = None
        while True:
            now = now_ns()
            if deadline <= now:
                raise error or DeadlineExceeded(f"model '{self._name}': the deadline has passed")
            chosen = self._choice.choose(now, tried)
            if chosen is None:
                assert error is not None
                raise error
            try:
                outputs = await self._transports[chosen].infer(call, (deadline - now) / SECOND)
            except IsochroneError as failure:
                tried.append(chosen)
                error = failure.within(f"model '{self._name}', computed by {self._settings.endpoints[chosen]}")
                self._note(failure, chosen)
                losses += isinstance(failure, ConnectionLost) and not failure.unprocessed
                if losses:
                    # Whatever the last endpoint says: a part of the request may have run on an earlier one.
                    error = error.begun()
                    error.losses = losses
                if losses > 1 or not _may_succeed_elsewhere(failure):
                    raise error from None
            else:
                self._choice.answered(chosen)
                self._report(partial(self.link.answered, call, outputs, now_ns() - now))
                return outputs
            finally:
                self._choice.ended(chosen)

    def _note(self, failure: IsochroneError, endpoint: int) -> None:
        if _is_unreachable(failure) or _is_given_up(failure):
            # No answer at all, or none in time: a server that hangs is left out, too.
            self._choice.failed(endpoint, now_ns())
        elif failure.status:
            self._choice.answered(endpoint)

    def _report(self, report: Callable[[], None]) -> None:
        """Whatever a watcher of the link does, the requests go on."""
        try:
            report()
        except Exception as error:
            log.error("a report of a link failed", model=self._name, exc_info=error)

    def began(self) -> list[int]:
        """When the requests that are under way were sent."""
        return [request.infer_start for request in self._running.values() if request.infer_start]

    async def probe(self, seconds: float) -> bool | None:
        """Asks all endpoints whether they serve the model, and reports the link; None: no endpoint answers."""
        settings = self._settings
        started = now_ns()

        async def ask(position: int) -> bool | None:
            try:
                ready = await self._transports[position].is_ready(settings.model, settings.version, seconds)
            except IsochroneError as error:
                if isinstance(error, Unavailable | DeadlineExceeded):
                    return None
                ready = False
            self._choice.answered(position)
            self.link.probed(now_ns() - started)
            return ready

        answers = await asyncio.gather(*(ask(position) for position in range(len(self._transports))))
        if all(answer is None for answer in answers):
            self.link.unreachable()
            return None
        return any(answers)

    def _call(self, request: InferRequest) -> InferCall:
        plan = request.plan
        left = None if request.deadline == NEVER else max(1.0, (request.deadline - now_ns()) / MILLISECOND)
        parameters = dict(plan.parameters)
        if plan.sequence_id:
            parameters["sequence_id"] = plan.sequence_id
            parameters["sequence_start"], parameters["sequence_end"] = plan.sequence_start, plan.sequence_end
        trace = self._statistics.trace
        headers = dict((request.trace_context if trace is None else trace.begin(request)) or {})
        if (pins := request.stages) is not None:
            headers[STAGES_HEADER.decode()] = write_stages(pins)
        if self.link.is_watched:
            headers[TIMING_HEADER.decode()] = "1"
        return make_call(
            self._settings.model,
            request.inputs,
            plan.outputs,
            self._settings.version,
            left,
            request.id,
            plan.priority,
            parameters,
            headers or None,
        )

    def _checked(self, request: InferRequest, outputs: Outputs) -> Tensors:
        """The outputs that were asked for; those of another type would reach the caller as something else."""
        found: Tensors = {}
        for name in request.plan.outputs or self._outputs:
            array = outputs.get(name)
            if array is None:
                raise ModelFailed(f"model '{self._name}': the answer of its endpoint has no output '{name}'")
            spec = self._outputs[name]
            if name_of(array.dtype) != spec.datatype or not self._fits(array.shape, spec.dims, request.plan.batch_size):
                raise ModelFailed(
                    f"model '{self._name}': output '{name}' of its endpoint is {name_of(array.dtype)} "
                    f"{list(array.shape)}, and config.pbtxt declares {spec.datatype} {list(spec.dims)}"
                    + (f" for each of {request.plan.batch_size} rows" if self._is_batched else "")
                )
            found[name] = array
        return found

    def _fits(self, shape: tuple[int, ...], dims: tuple[int, ...], rows: int) -> bool:
        expected = (rows, *dims) if self._is_batched else dims
        return len(shape) == len(expected) and all(dim in (-1, size) for size, dim in zip(shape, expected, strict=True))

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._statistics.trace_failure(request, error)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    def estimated_wait(self, now: int) -> int:
        return 0

    def estimated_run(self) -> int:
        return int(self._estimate)

    def least_run(self) -> int:
        """Not known: the next answer may come much sooner than those before it."""
        return 0

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return ""

    def check_stuck(self, now: int) -> None:
        """Gives up requests whose callers have gone; others end at their deadline, or after ``answer_timeout_ms``."""
        for task, request in list(self._running.items()):
            if request.cancelled:
                task.cancel()

    def fail_all(self, error: IsochroneError | None = None) -> None:
        self._rejection = error or self._unloading()
        for task in list(self._running):
            task.cancel()

    def release(self) -> None:
        self._rejection = self._rejection or self._unloading()
        for transport in self._transports:
            self._closing.start(transport.close())

    def close(self) -> None:
        """Nothing is left: ``release`` has closed the connections."""

    def _unloading(self) -> Unavailable:
        return Unavailable(f"model '{self._name}' is being unloaded")


def _may_succeed_elsewhere(failure: IsochroneError) -> bool:
    """``NotFound``: while versions change, not every endpoint has the same. ``UnsupportedEncoding``: nor the same
    packages."""
    return isinstance(failure, ConnectionLost | NotFound | UnsupportedEncoding) or (
        failure.unprocessed and isinstance(failure, Unavailable | QueueFull)
    )


def _is_unreachable(failure: IsochroneError) -> bool:
    """gRPC's library reports a connection that breaks as a server that answered UNAVAILABLE. A server that does is
    taken for one that cannot be reached, unless it says that it has not begun: this costs it a short pause."""
    if not isinstance(failure, Unavailable) or failure.status.startswith("HTTP"):
        return False
    return not failure.status or not failure.unprocessed


def _is_given_up(failure: IsochroneError) -> bool:
    """No answer in time, where a server may also have answered that there is no time."""
    return isinstance(failure, DeadlineExceeded) and not failure.status
