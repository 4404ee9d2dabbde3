"""Metrics of tracing. A server that exports no traces has none of them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from isochrone.observe.snapshot import TraceSnapshot


def trace_metrics(traces: TraceSnapshot | None) -> Iterator[Metric]:
    if traces is None:
        return
    kept = CounterMetricFamily("isochrone_trace_kept", "Traces kept for export, by reason", labels=("reason",))
    for reason, count in traces.kept.items():
        kept.add_metric((reason,), count)
    yield kept
    yield CounterMetricFamily(
        "isochrone_trace_dropped", "Traces dropped because the queue to the exporter was full", traces.dropped
    )
    yield CounterMetricFamily(
        "isochrone_trace_limited",
        "Deadline misses and errors of which no trace was kept: too many per second",
        traces.limited,
    )
    yield CounterMetricFamily(
        "isochrone_trace_export_failures", "Traces lost because the collector did not take them", traces.failed
    )
