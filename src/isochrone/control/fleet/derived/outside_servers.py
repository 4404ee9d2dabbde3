"""The servers of a fleet that run already: the fleet uses them, and does not start them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.control.state.process_records import BY_ADDRESS, WorkerRecord
from isochrone.gateway.upstream.addresses import Upstream, parse_upstream


@dataclass(frozen=True, slots=True)
class OutsideServer:
    """One of them."""

    name: str
    pool: str
    upstream: Upstream
    kind: str


def outside_servers(fleet: FleetSections) -> dict[str, OutsideServer]:
    """The servers of all ``addresses``, by name. The name comes from the address, so that it is stable."""
    found = {}
    for pool, spec in fleet.pools.items():
        for text in spec.addresses:
            upstream = parse_upstream(text)
            name = f"{pool}-{upstream.host}-{upstream.port}"
            found[name] = OutsideServer(name, pool, upstream, spec.kind)
    return found


def server_records(fleet: FleetSections) -> tuple[WorkerRecord, ...]:
    """The records of outside servers, which the leader registers."""
    return tuple(
        WorkerRecord(
            name=server.name,
            host=server.upstream.host,
            port=server.upstream.port,
            grpc_port=server.upstream.grpc_port,
            metrics_port=server.upstream.metrics_port,
            pool=server.pool,
            tier=server.upstream.tier or fleet.pools[server.pool].tier,
            device=server.upstream.device or fleet.pools[server.pool].device,
            region=server.upstream.region or fleet.pools[server.pool].region,
            memory=fleet.pools[server.pool].memory,
            kind=server.kind,
            incarnation=BY_ADDRESS,
        )
        for server in outside_servers(fleet).values()
    )
