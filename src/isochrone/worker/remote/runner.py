"""The runner of one version of a remote model: sends every request on at once, on the event loop.

What travels along: the time that is left of the deadline, the priority, the id, the parameters, and the version. While
time is left, a request of which nothing has run is sent to another endpoint. So is, once, a request whose connection
broke: its server may have died, perhaps by this request. Any other failure is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from isochrone.background_tasks import BackgroundTasks
from isochrone.client.address import Address, Certificates
from isochrone.client.answers import Outputs
from isochrone.client.calls import InferCall, make_call
from isochrone.clock import MILLISECOND, NEVER, SECOND, now_ns
from isochrone.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Internal,
    IsochroneError,
    ModelFailed,
    QueueFull,
    Unavailable,
)
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.remote.endpoints import EndpointChoice

if TYPE_CHECKING:
    from isochrone.models.signature import Signature
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.remote.settings import RemoteSettings
    from isochrone.worker.statistics import ModelStatistics

#: Weight of the latest answer in the estimate of a run.
_WEIGHT = 0.1


class Transport(Protocol):
    """The connections to one endpoint, of the client."""

    async def infer(self, call: InferCall, seconds: float | None) -> Outputs: ...

    async def close(self) -> None: ...


OpenTransport = Callable[[Address, Certificates], Transport]


def open_transport(address: Address, certificates: Certificates) -> Transport:
    if address.is_grpc:
        from isochrone.client.grpc.async_transport import AsyncGrpcTransport

        return AsyncGrpcTransport(address, certificates)
    from isochrone.client.http.async_transport import AsyncHttpTransport

    return AsyncHttpTransport(address, certificates)


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
        self._datatypes = {spec.name: spec.datatype for spec in signature.outputs}
        self._statistics = statistics
        self._request_ended = request_ended
        self._failures = FailureLog(name, statistics.model_version)
        self._choice = EndpointChoice(len(settings.endpoints))
        self._transports = [open_transport(address, settings.certificates) for address in settings.endpoints]
        self._running: dict[asyncio.Task[None], InferRequest] = {}
        self._closing = BackgroundTasks()
        self._estimate = 0.0
        self._rejection: IsochroneError | None = None

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
            )
        task = asyncio.ensure_future(self._run(request))
        self._running[task] = request
        task.add_done_callback(self._running.pop)

    async def _run(self, request: InferRequest) -> None:
        request.dispatched = request.compute_start = request.infer_start = now_ns()
        try:
            outputs = self._checked(request, await self._answer(request))
        except asyncio.CancelledError:
            self._fail(request, self._rejection or self._unloading())
            return
        except IsochroneError as error:
            self._fail(request, error)
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
        tried: list[int] = []
        losses = 0
        error: IsochroneError | None = None
        while True:
            now = now_ns()
            if request.deadline <= now:
                raise error or DeadlineExceeded(f"model '{self._name}': the deadline has passed")
            chosen = self._choice.choose(now, tried)
            if chosen is None:
                assert error is not None
                raise error
            seconds = None if request.deadline == NEVER else (request.deadline - now) / SECOND
            try:
                outputs = await self._transports[chosen].infer(call, seconds)
            except IsochroneError as failure:
                tried.append(chosen)
                error = failure.within(f"model '{self._name}', computed by {self._settings.endpoints[chosen]}")
                self._note(failure, chosen)
                losses += isinstance(failure, ConnectionLost) and not failure.unprocessed
                if losses > 1 or not _may_succeed_elsewhere(failure):
                    raise error from None
            else:
                self._choice.answered(chosen)
                return outputs
            finally:
                self._choice.ended(chosen)

    def _note(self, failure: IsochroneError, endpoint: int) -> None:
        is_answer = bool(failure.status)
        if isinstance(failure, Unavailable) and not is_answer:
            self._choice.failed(endpoint, now_ns())
        elif is_answer:
            self._choice.answered(endpoint)

    def _call(self, request: InferRequest) -> InferCall:
        plan = request.plan
        left = None if request.deadline == NEVER else max(1.0, (request.deadline - now_ns()) / MILLISECOND)
        return make_call(
            self._settings.model,
            request.inputs,
            plan.outputs,
            self._settings.version,
            left,
            request.id,
            plan.priority,
            dict(plan.parameters),
            None,
        )

    def _checked(self, request: InferRequest, outputs: Outputs) -> Tensors:
        """The outputs that were asked for; those of another type would reach the caller as something else."""
        found: Tensors = {}
        for name in request.plan.outputs or self._datatypes:
            array = outputs.get(name)
            if array is None:
                raise ModelFailed(f"model '{self._name}': the answer of its endpoint has no output '{name}'")
            if name_of(array.dtype) != self._datatypes[name]:
                raise ModelFailed(
                    f"model '{self._name}': output '{name}' of its endpoint is {name_of(array.dtype)}, and "
                    f"config.pbtxt declares {self._datatypes[name]}"
                )
            found[name] = array
        return found

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
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
        """Nothing to do: requests with deadlines end by themselves, and others wait for the other server."""

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
    return isinstance(failure, ConnectionLost) or (failure.unprocessed and isinstance(failure, Unavailable | QueueFull))
