"""The names of a fleet's processes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.control.fleet.settings.sections import FleetSections
from isochrone.settings.problems import Path


def controller_names(fleet: FleetSections) -> list[str]:
    return [f"control-{number}" for number in range(1, fleet.control.count + 1)]


def gateway_names(fleet: FleetSections, group: str) -> list[str]:
    """``gw``; or ``gw-1``, ``gw-2`` where there are several."""
    count = fleet.gateways[group].count
    return [group] if count == 1 else [f"{group}-{number}" for number in range(1, count + 1)]


def gateway_group(process: str, fleet: FleetSections) -> str:
    """The group of a gateway's process. ``gw-2.1`` is the first process of the second gateway of ``gw``."""
    gateway = process.partition(".")[0]
    return gateway if gateway in fleet.gateways else gateway.rpartition("-")[0]


def worker_names(fleet: FleetSections, pool: str) -> list[str]:
    return [f"{pool}-{number}" for number in range(1, fleet.pools[pool].processes + 1)]


def names_of(fleet: FleetSections) -> Iterator[tuple[Path, list[str]]]:
    """The names of all processes, with the key that each comes from."""
    yield ("control",), controller_names(fleet)
    for group in fleet.gateways:
        yield ("gateways", group), gateway_names(fleet, group)
    for pool in fleet.pools:
        yield ("pools", pool), worker_names(fleet, pool)
