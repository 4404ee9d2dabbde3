"""Checks whether a fleet can run on the connected Ray cluster.

Nodes with one address are one machine. A fleet of several machines needs a store and listening addresses that reach
beyond one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from ipaddress import ip_address

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.process_ports import EVERYWHERE
from isochrone.control.fleet.settings.quantities import join_address, split_address
from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.control.state.records import FleetRecord
from isochrone.engines.ray.nodes import read_nodes
from isochrone.settings.problems import Path, Problem, settings_error

#: Resources of Ray that are no custom ones.
_OWN_RESOURCES = {
    "CPU": "cores are cpus",
    "GPU": "GPUs are gpus",
    "object_store_memory": "no process uses Ray's object store",
}


async def check_cluster(record: FleetRecord, where: str) -> None:
    """Raise ``SettingsError`` for all keys to change."""
    import ray

    nodes = read_nodes(await asyncio.to_thread(ray.nodes))
    if problems := cluster_problems(fleet_of(record.spec), [node.address for node in nodes]):
        raise settings_error(problems, where, None)


def cluster_problems(fleet: FleetSections, addresses: Collection[str]) -> list[Problem]:
    """Pure. ``addresses``: of all nodes."""
    found = [
        Problem(("pools", pool, "resources", name), f"another resource: {way}", name)
        for pool, spec in fleet.pools.items()
        for name, way in _OWN_RESOURCES.items()
        if name in spec.resources
    ]
    machines = len(set(addresses))
    if machines < 2:
        return found
    if fleet.store.url.startswith("sqlite:"):
        expected = f"etcd:http://HOST:2379, since the Ray cluster has {machines} machines and a file serves only one"
        found.append(Problem(("store", "url"), expected, fleet.store.url))
    listens: list[tuple[Path, str]] = [(("control", "listen"), fleet.control.listen)]
    listens += [(("gateways", group, "listen"), gateway.listen) for group, gateway in fleet.gateways.items()]
    for path, listen in listens:
        host, port = split_address(listen)
        if host not in EVERYWHERE:
            everywhere = join_address("::" if ":" in host else "0.0.0.0", port)
            expected = f"{everywhere}, since Ray may start the process on any of {machines} machines"
            given = f"{listen}, which only the same machine reaches" if _is_loopback(host) else listen
            found.append(Problem(path, expected, given))
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
