"""The metrics pages of the registered workers and gateways, as Prometheus' HTTP service discovery reads them. Pure."""

from __future__ import annotations

from isochrone.control.api.messages import ScrapeTarget
from isochrone.control.state.view import View

#: Where the controllers serve them.
TARGETS_PATH = "/v1/scrape-targets"


def scrape_targets(view: View) -> tuple[ScrapeTarget, ...]:
    """Those that have a metrics page. A process that loses its registration is not among them."""
    found = [
        ScrapeTarget((_address(worker.host, worker.metrics_port),), _labels("worker", name, worker.pool))
        for name, worker in view.workers.items()
        if worker.metrics_port
    ]
    found += [
        ScrapeTarget((_address(gateway.host, gateway.metrics_port),), _labels("gateway", name))
        for name, gateway in view.gateways.items()
        if gateway.metrics_port
    ]
    return tuple(found)


def _labels(role: str, name: str, pool: str = "") -> dict[str, str]:
    found = {"role": role, "name": name}
    return {**found, "pool": pool} if pool else found


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
