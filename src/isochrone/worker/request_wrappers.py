"""Requests that stand in for another one inside the worker: they pass its answer on, and do something with it.

Between a service, which makes one, and the transport's own request, which writes the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MICROSECOND, now_ns
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.response_cache import ResponseCache, ResponseKey
    from isochrone.worker.statistics import ModelStatistics


log = structlog.get_logger()


class StandIn(InferRequest):
    """Runs in place of a request and hands over what it learns."""

    __slots__ = ("_original",)

    def __init__(self, original: InferRequest) -> None:
        super().__init__(original.plan, original.id, original.inputs, original.arrived, original.deadline)
        self.served_by = original.served_by
        self._original = original

    # The transport marks the original; the scheduler looks here.
    @property
    def cancelled(self) -> bool:
        return self._original.cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        # InferRequest.__init__ runs before there is an original.
        original: Any = getattr(self, "_original", None)
        if original is not None:
            original.cancelled = value

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self._original.stages

    def endpoint(self) -> str:
        return self._original.endpoint()

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._hand_over()
        self._original.complete(outputs, parameters)

    def fail(self, error: IsochroneError) -> None:
        self._hand_over()
        self._original.fail(error)

    def dropped(self) -> None:
        self._original.dropped()

    def _hand_over(self) -> None:
        original = self._original
        original.plan, original.served_by = self.plan, self.served_by
        original.enqueued, original.dispatched = self.enqueued, self.dispatched
        original.compute_start, original.compute_end = self.compute_start, self.compute_end
        original.infer_start, original.infer_end = self.infer_start, self.infer_end


class CachingRequest(StandIn):
    """Puts a request's answer into the response cache on its way out."""

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

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        started = now_ns()
        self._cache.insert(self._key, outputs)
        insertion_ns = now_ns() - started
        self._cache.insertion_ns += insertion_ns
        self._statistics.record_cache_miss(self._lookup_ns, insertion_ns)
        super().complete(outputs, parameters)


class LoggedRequest(StandIn):
    """Has a line in the log when it is over; for verbose level 2."""

    __slots__ = ("_responses",)

    def __init__(self, original: InferRequest) -> None:
        super().__init__(original)
        self._responses = 0

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        super().complete(outputs, parameters)
        self.tell("answered")

    def fail(self, error: IsochroneError) -> None:
        super().fail(error)
        self.tell(error.code, error=str(error))

    def dropped(self) -> None:
        super().dropped()
        self.tell("cancelled")

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._hand_over()
        self._responses += 1
        self._original.emit(outputs, parameters)

    def finish(self) -> None:
        self._hand_over()
        self._original.finish()
        self.tell("answered", responses=self._responses)

    @property
    def is_congested(self) -> bool:
        return self._original.is_congested

    def when_writable(self, callback: Callable[[], None]) -> None:
        self._original.when_writable(callback)

    def tell(self, outcome: str, **more: Any) -> None:
        plan = self.plan
        log.debug(
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
    """The same, for a caller that takes any number of responses."""

    __slots__ = ()

    takes_many = True
