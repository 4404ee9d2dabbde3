"""A worker's load report as the gateway reads it: ORCA's flat names into a ``LoadReport``."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.gateway.targets import LoadReport

#: Of any figure: what no worker means seriously must still fit into 64 bits of nanoseconds.
_MOST = 1e15


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
