"""Sends figures with OpenTelemetry's own OTLP exporters, over gRPC or HTTP.

The packages are an extra (``pip install isochrone[tracing]``) and are imported when a sink is opened, never before.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import isochrone
from isochrone.observe.otlp_metrics.figures import GAUGE, HISTOGRAM, Figure
from isochrone.observe.otlp_metrics.settings import MetricsExport

_TIMEOUT_SECONDS = 5


class ExportFailed(Exception):
    """The collector did not take the figures."""


class MetricsSink:
    """One exporter of OpenTelemetry."""

    def __init__(self, settings: MetricsExport) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        # They log every repetition; this process logs failures itself, once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._success = MetricExportResult.SUCCESS
        names = {"service.name": "isochrone", "service.instance.id": settings.instance}
        self._resource = Resource.create(names)
        self._scope = InstrumentationScope("isochrone", isochrone.__version__)
        self._exporter = _exporter(settings)
        self._started = time.time_ns()

    def export(self, figures: list[Figure]) -> None:
        """Raises if they did not arrive."""
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics

        now = time.time_ns()
        metrics = [self._metric(each, now) for each in figures]
        scope = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        if self._exporter.export(data, timeout_millis=_TIMEOUT_SECONDS * 1000) is not self._success:
            raise ExportFailed("no success within the timeout")

    def close(self) -> None:
        self._exporter.shutdown()

    def _metric(self, figure: Figure, now: int) -> Any:
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Gauge,
            Histogram,
            HistogramDataPoint,
            Metric,
            NumberDataPoint,
            Sum,
        )

        data: Any
        if figure.kind == HISTOGRAM:
            least: Any = None
            histograms = [
                HistogramDataPoint(
                    dict(each.labels),
                    self._started,
                    now,
                    sum(each.counts),
                    each.total,
                    each.counts,
                    each.bounds,
                    # Not known.
                    least,
                    least,
                )
                for each in figure.histograms
            ]
            data = Histogram(histograms, AggregationTemporality.CUMULATIVE)
        else:
            points = [NumberDataPoint(dict(labels), self._started, now, value) for labels, value in figure.values]
            is_gauge = figure.kind == GAUGE
            data = Gauge(points) if is_gauge else Sum(points, AggregationTemporality.CUMULATIVE, True)
        unit = "s" if figure.name.endswith("_seconds") else ""
        return Metric(figure.name, figure.description, unit, data)


def _exporter(settings: MetricsExport) -> Any:
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter(endpoint=settings.url, insecure=True, timeout=_TIMEOUT_SECONDS)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(endpoint=settings.url, timeout=_TIMEOUT_SECONDS)
