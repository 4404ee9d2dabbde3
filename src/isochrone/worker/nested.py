"""Requests that stand in for another one inside the worker: they pass its answer on, and do something with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.response_cache import ResponseCache, ResponseKey
    from isochrone.worker.statistics import ModelStatistics


class CachingRequest(InferRequest):
    """Puts a request's answer into the response cache on its way out."""

    __slots__ = ("_cache", "_key", "_lookup_ns", "_original", "_statistics")

    def __init__(
        self,
        original: InferRequest,
        cache: ResponseCache,
        key: ResponseKey,
        statistics: ModelStatistics,
        lookup_ns: int,
    ) -> None:
        super().__init__(original.plan, original.id, original.inputs, original.arrived, original.deadline)
        self.served_by = original.served_by
        self._original = original
        self._cache = cache
        self._key = key
        self._statistics = statistics
        self._lookup_ns = lookup_ns

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

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        started = now_ns()
        self._cache.insert(self._key, outputs)
        self._statistics.record_cache_miss(self._lookup_ns, now_ns() - started)
        self._hand_over_marks()
        self._original.complete(outputs, parameters)

    def fail(self, error: IsochroneError) -> None:
        self._hand_over_marks()
        self._original.fail(error)

    def dropped(self) -> None:
        self._original.dropped()

    def _hand_over_marks(self) -> None:
        original = self._original
        original.enqueued, original.dispatched = self.enqueued, self.dispatched
        original.compute_start, original.compute_end = self.compute_start, self.compute_end
        original.infer_start, original.infer_end = self.infer_start, self.infer_end
