"""All objects of a fleet, in the order in which a cluster needs them. Pure."""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.base import base_objects
from isochrone.engines.kubernetes.render.control import control_objects
from isochrone.engines.kubernetes.render.edge import edge_objects
from isochrone.engines.kubernetes.render.gateways import gateway_objects
from isochrone.engines.kubernetes.render.network import network_policies
from isochrone.engines.kubernetes.render.workers import worker_objects

Document = dict[str, Any]


def parts(fleet: Fleet, text: str) -> dict[str, list[Document]]:
    """The objects by part of the fleet, such as ``control`` or ``pool-cpu``. ``text``: the fleet.yaml, without a
    password. The fleet must have no ``problems``."""
    found = {
        "namespace": base_objects(fleet),
        "network": network_policies(fleet),
        "control": control_objects(fleet, text),
        **{f"gateways-{group}": gateway_objects(fleet, group) for group in fleet.gateways},
        **{f"pool-{pool}": worker_objects(fleet, pool) for pool in names.started_pools(fleet)},
        "edge": edge_objects(fleet),
    }
    return {part: documents for part, documents in found.items() if documents}
