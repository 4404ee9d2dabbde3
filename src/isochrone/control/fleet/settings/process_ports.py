"""The addresses and fixed ports of a fleet's processes, each with the key that it comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.control.fleet.settings.process_names import controller_names, gateway_names
from isochrone.control.fleet.settings.quantities import join_address, split_address
from isochrone.control.fleet.settings.sections import FleetSections, Pool
from isochrone.settings.problems import Path

#: Gateways of the same machine use the workers, unless a pool's arguments name another --host.
WORKER_HOST = "127.0.0.1"
_PORTS_PER_WORKER = 3
#: Addresses that listen on every interface.
EVERYWHERE = frozenset(("0.0.0.0", "::", ""))


def counted_addresses(names: list[str], listen: str) -> Iterator[tuple[str, str]]:
    """Each name with its address; ports count up, and 0 stays 0."""
    host, port = split_address(listen)
    for index, name in enumerate(names):
        yield name, join_address(host, port + index if port else 0)


def controller_ports(fleet: FleetSections) -> Iterator[tuple[Path, str, int]]:
    for _, listen in counted_addresses(controller_names(fleet), fleet.control.listen):
        host, port = split_address(listen)
        if port:
            yield ("control", "listen"), host, port


def gateway_ports(fleet: FleetSections) -> Iterator[tuple[Path, str, int]]:
    for group, gateway in fleet.gateways.items():
        for index, (_, listen) in enumerate(counted_addresses(gateway_names(fleet, group), gateway.listen)):
            host, port = split_address(listen)
            if port:
                yield ("gateways", group, "listen"), host, port
            if gateway.metrics_port > 0:
                yield ("gateways", group, "metrics_port"), host, gateway.metrics_port + index


def worker_ports(fleet: FleetSections) -> Iterator[tuple[Path, str, int]]:
    for pool, spec in fleet.pools.items():
        for index in range(spec.processes):
            for port in ports_of_worker(spec, index):
                if port:
                    yield ("pools", pool, "first_port"), WORKER_HOST, port


def ports_of_worker(pool: Pool, index: int) -> tuple[int, int, int]:
    """HTTP, gRPC, metrics."""
    first = pool.first_port + _PORTS_PER_WORKER * index
    return (first, first + 1, first + 2) if pool.first_port else (0, 0, 0)
