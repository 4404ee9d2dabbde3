"""Requests that wrap another request inside the worker, and pass its answer on to the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from isochrone.clock import MICROSECOND, now_ns
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.response_cache import ResponseCache, ResponseKey
    from isochrone.worker.statistics import ModelStatistics


_log = structlog.get_logger(__name__)


class RequestWrapper(InferRequest):
    """Runs in place of a request and copies its timestamps to it."""

    __slots__ = ("_original",)

    def __init__(self, original: InferRequest) -> None:
        super().__init__(original.plan, original.id, original.inputs, original.arrived, original.deadline)
        self.served_by = original.served_by
        self._original = original

    # The transport sets it on the original; the scheduler reads it here.
    @property
    def cancelled(self) -> bool:
        return self._original.cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._original.cancelled = value

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._original.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self._original.trace_context

    @property
    def caller_id(self) -> str:
        return self._original.caller_id

    @property
    def division(self) -> str:
        return self._original.division

    @property
    def shares_inputs(self) -> bool:
        return self._original.shares_inputs

    def shares_input(self, name: str) -> bool:
        return self._original.shares_input(name)

    def keeps_on_device(self, output: str) -> bool:
        return self._original.keeps_on_device(output)

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self._original.call_chain

    def exchange_of(self) -> Any:
        return self._original.exchange_of()

    def endpoint(self) -> str:
        return self._original.endpoint()

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._copy_timestamps()
        self._original.complete(outputs, parameters)

    def fail(self, error: IsochroneError) -> None:
        self._copy_timestamps()
        self._original.fail(error)

    def dropped(self) -> None:
        self._original.dropped()

    def _copy_timestamps(self) -> None:
        original = self._original
        original.plan, original.served_by = self.plan, self.served_by
        original.enqueued, original.dispatched = self.enqueued, self.dispatched
        original.compute_start, original.compute_end = self.compute_start, self.compute_end
        original.infer_start, original.infer_end = self.infer_start, self.infer_end


class CachingRequest(RequestWrapper):
    """Stores the answer in the response cache."""

    __slots__ = ("_cache", "_key", "_lookup_ns", "_statistics")

    def __init__(
        self,
        original: InferRequest,
        cache: ResponseCache,
        key: ResponseKey,
        statistics: ModelStatistics,
        lookup_ns: int,
    ) -> None:
        super().__init__(original)
        self._cache = cache
        self._key = key
        self._statistics = statistics
        self._lookup_ns = lookup_ns

    def keeps_on_device(self, output: str) -> bool:
        """The cache keeps arrays of the host."""
        return False

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        started = now_ns()
        self._cache.insert(self._key, outputs)
        insertion_ns = now_ns() - started
        self._cache.insertion_ns += insertion_ns
        self._statistics.record_cache_miss(self._lookup_ns, insertion_ns)
        super().complete(outputs, parameters)


class LoggedRequest(RequestWrapper):
    """Logs a line when the request ends; for verbose level 2."""

    __slots__ = ("_responses",)

    def __init__(self, original: InferRequest) -> None:
        super().__init__(original)
        self._responses = 0

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        super().complete(outputs, parameters)
        self.log("answered")

    def fail(self, error: IsochroneError) -> None:
        super().fail(error)
        self.log(error.code, error=str(error))

    def dropped(self) -> None:
        super().dropped()
        self.log("cancelled")

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._copy_timestamps()
        self._responses += 1
        self._original.emit(outputs, parameters)

    def finish(self) -> None:
        self._copy_timestamps()
        self._original.finish()
        self.log("answered", responses=self._responses)

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._copy_timestamps()
        self._responses += 1
        self._original.finish_with(outputs, parameters)
        self.log("answered", responses=self._responses)

    @property
    def is_congested(self) -> bool:
        return self._original.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._original.when_writable(callback)

    def log(self, outcome: str, **more: Any) -> None:
        plan = self.plan
        _log.debug(
            "request",
            verbosity=2,
            model=plan.model_name,
            version=self.served_by.model_version if self.served_by is not None else plan.model_version,
            id=self.id,
            rows=plan.batch_size,
            outcome=outcome,
            queue_us=max(0, self.dispatched - self.enqueued) // MICROSECOND,
            compute_us=(self.compute_end - self.compute_start) // MICROSECOND,
            total_us=(now_ns() - self.arrived) // MICROSECOND,
            **more,
        )


class LoggedStream(LoggedRequest):
    """The same, for a caller that accepts any number of responses."""

    __slots__ = ()

    takes_many: ClassVar[bool] = True
