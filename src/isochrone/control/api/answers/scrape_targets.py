"""The metrics pages of the registered workers and gateways, as Prometheus' HTTP service discovery reads them.

A gateway that lost its registration without leaving may still serve callers, with an old epoch, where it does not reach
the store: its page says so, and stays listed. Other processes that lose their registration are not listed.
"""

from __future__ import annotations

from isochrone.control.api.messages import ScrapeTarget
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.view import View

#: Where the controllers serve them.
TARGETS_PATH = "/v1/scrape-targets"


class ScrapeTargets:
    """One controller's list. It knows the page of a lost gateway if it listed it before."""

    def __init__(self) -> None:
        #: The last record of each gateway that has not left.
        self._gateways: dict[str, GatewayRecord] = {}

    def listed(self, view: View) -> tuple[ScrapeTarget, ...]:
        """Of the present records: the processes that have a metrics page."""
        known = view.known_gateways
        present = {(gateway.host, gateway.metrics_port) for gateway in view.gateways.values()}
        lost = {
            name: record
            for name, record in self._gateways.items()
            # Another process may have its address by now: its page would count twice.
            if name in known and (record.host, record.metrics_port) not in present
        }
        self._gateways = {**lost, **view.gateways}
        found = [
            ScrapeTarget(
                (_address(worker.host, worker.metrics_port),), _labels("worker", name, worker.tls, worker.pool)
            )
            for name, worker in view.workers.items()
            if worker.metrics_port
        ]
        found += [
            ScrapeTarget((_address(gateway.host, gateway.metrics_port),), _labels("gateway", name, gateway.tls))
            for name, gateway in sorted(self._gateways.items())
            if gateway.metrics_port
        ]
        return tuple(found)


def _labels(role: str, name: str, is_tls: bool, pool: str = "") -> dict[str, str]:
    found = {"role": role, "name": name, **({"__scheme__": "https"} if is_tls else {})}
    return {**found, "pool": pool} if pool else found


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
