"""A worker's load report as the gateway reads it: ORCA's flat names into a ``LoadReport``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from isochrone.errors import MalformedRequest
from isochrone.gateway.targets import LoadReport
from isochrone.protocol.timing import parse_orca_header

#: Of any figure: what no worker means seriously must still fit into 64 bits of nanoseconds.
_MOST = 1e15


#: One figure of the text form.
_FIGURE = re.compile(rb"(?:named_metrics\.)?(\w+)=([-+.\deE]+)")


def report_of_header(value: bytes) -> LoadReport:
    """A report in ``endpoint-load-metrics``. The text form, which is asked for, is read here at a fifth of the cost."""
    if not value.startswith(b"TEXT "):
        return report_of(parse_orca_header(value))
    told = dict(_FIGURE.findall(value))
    try:
        free = int(float(told.get(b"free_memory_bytes", 0)))
        return LoadReport(
            int(float(told.get(b"in_flight", 0))),
            int(float(told.get(b"queue_depth", 0))),
            int(float(told.get(b"estimated_wait_us", 0)) * 1000),
            int(float(told.get(b"estimated_run_us", 0)) * 1000),
            int(float(told.get(b"least_run_us", 0)) * 1000),
            free or -1,
            float(told.get(b"draining", 0)) > 0,
        )
    except (ValueError, OverflowError):
        raise MalformedRequest(f"load report: expected numbers, given {value[:100]!r}") from None


def report_of(figures: Mapping[str, float]) -> LoadReport:
    """Names a worker does not tell count as nothing known."""

    def figure(name: str) -> float:
        value = figures.get(name, figures.get(f"named_metrics.{name}", 0.0))
        # A worker may say anything, infinite or no number at all included.
        return min(value, _MOST) if value > 0 else 0.0

    free = figure("free_memory_bytes")
    return LoadReport(
        int(figure("in_flight")),
        int(figure("queue_depth")),
        int(figure("estimated_wait_us") * 1000),
        int(figure("estimated_run_us") * 1000),
        int(figure("least_run_us") * 1000),
        int(free) if free else -1,
        figure("draining") > 0,
    )
