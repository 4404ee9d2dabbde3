"""Metrics of the wire: connections, memory buffered for clients, event loop lag. For workers and gateways."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from isochrone.observe.snapshot import BUCKET_BOUNDS_NS, Histogram, WireSnapshot


def wire_metrics(wire: WireSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily("isochrone_connections", "Open client connections", wire.connections)
    yield GaugeMetricFamily(
        "isochrone_connections_stalled",
        "Connections whose client has read none of the unsent bytes for several seconds",
        wire.stalled,
    )
    yield GaugeMetricFamily(
        "isochrone_buffered_bytes", "Bytes buffered for clients: large bodies, and answers not sent", wire.buffered
    )
    yield GaugeMetricFamily("isochrone_buffered_peak_bytes", "Peak of isochrone_buffered_bytes", wire.buffered_peak)
    yield GaugeMetricFamily("isochrone_buffered_limit_bytes", "max_buffered_bytes", wire.buffered_limit)
    yield CounterMetricFamily(
        "isochrone_rejected_for_memory", "Requests rejected because their connection held its share", wire.rejected
    )
    lag = HistogramMetricFamily("isochrone_event_loop_lag_seconds", "Delay of callbacks that were due")
    lag.add_metric((), _buckets(wire.loop_lag), wire.loop_lag.sum_ns / 1e9)
    yield lag
    expires = GaugeMetricFamily(
        "isochrone_certificate_expiry_timestamp_seconds", "When the certificate of a listener expires", labels=()
    )
    if wire.certificate_expires is not None:
        expires.add_metric((), wire.certificate_expires)
    yield expires


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    totals = histogram.counts.cumsum().tolist()
    bounds = [repr(bound / 1e9) for bound in BUCKET_BOUNDS_NS]
    return [(bound, float(total)) for bound, total in zip((*bounds, "+Inf"), totals, strict=True)]
