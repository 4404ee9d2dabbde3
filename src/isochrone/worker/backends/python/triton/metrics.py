"""``pb_utils.MetricFamily`` and its metrics: what a model counts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.server import Server


class MetricFamily:
    """A family of metrics; ``utilities`` makes a subclass for each model instance, bound to its server."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    _server: ClassVar[Server]

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._name, self._description, self._kind = name, description, kind

    def Metric(  # noqa: N802 - the name is Triton's
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        try:
            series = self._server.metric(self._name, self._description, self._kind, labels or {}, buckets or ())
        except ValueError as error:
            raise TritonModelException(str(error)) from None
        return Metric(series)


class Metric:
    """One metric, on the metrics page as long as the model keeps it."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def increment(self, value: float) -> None:
        self._change("increment", value)

    def set(self, value: float) -> None:
        self._change("set", value)

    def observe(self, value: float) -> None:
        self._change("observe", value)

    def value(self) -> float:
        return float(self._change("value"))

    def _change(self, how: str, *value: float) -> Any:
        try:
            return getattr(self._series, how)(*value)
        except ValueError as error:
            raise TritonModelException(str(error)) from None
