"""The processes of a fleet that keep flight records, from its records. Pure."""

from __future__ import annotations

from isochrone.control.flights.asking import Target
from isochrone.control.state.view import View
from isochrone.observe.flights.messages import GATEWAY, WORKER


def flight_targets(view: View) -> list[Target]:
    """Registered gateways and workers that have a metrics port."""
    found = [
        Target(GATEWAY, _address(gateway.host, gateway.metrics_port), name, tls=gateway.tls)
        for name, gateway in view.gateways.items()
        if gateway.metrics_port
    ]
    found += [
        Target(
            WORKER,
            _address(worker.host, worker.metrics_port),
            name,
            worker.address,
            worker.is_of_fleet,
            worker.tls,
        )
        for name, worker in view.workers.items()
        if worker.metrics_port
    ]
    return found


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
