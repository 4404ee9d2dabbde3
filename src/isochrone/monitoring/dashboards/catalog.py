"""All dashboards."""

from __future__ import annotations

from isochrone.monitoring.dashboards.control_plane import control_plane_dashboard
from isochrone.monitoring.dashboards.fleet import fleet_dashboard
from isochrone.monitoring.dashboards.gateway import gateway_dashboard
from isochrone.monitoring.dashboards.layout import Dashboard
from isochrone.monitoring.dashboards.model import model_dashboard
from isochrone.monitoring.dashboards.worker import worker_dashboard


def all_dashboards() -> tuple[Dashboard, ...]:
    """The overview first."""
    return (
        fleet_dashboard(),
        model_dashboard(),
        gateway_dashboard(),
        worker_dashboard(),
        control_plane_dashboard(),
    )
