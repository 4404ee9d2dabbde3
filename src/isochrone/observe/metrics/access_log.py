"""Metrics of the access log. A server without one has none of them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from isochrone.observe.snapshot import AccessLogSnapshot


def access_log_metrics(lines: AccessLogSnapshot | None) -> Iterator[Metric]:
    if lines is None:
        return
    for name, text, value in (
        ("lines", "Lines of the access log that were written", lines.written),
        ("dropped", "Lines lost because the file or the reader of a pipe was slow or failed", lines.dropped),
        ("limited", "Failed or late requests that were not logged: too many per second", lines.limited),
    ):
        yield CounterMetricFamily(f"isochrone_access_log_{name}", text, value)
