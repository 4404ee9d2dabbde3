"""The pod of each process of a fleet: that of the rendered manifests, with the process's own command line. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.settings.process_names import gateway_group
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes.render.control import controller_parts
from isochrone.engines.kubernetes.render.gateways import gateway_parts
from isochrone.engines.kubernetes.render.pods import PodParts, pod_template
from isochrone.engines.kubernetes.render.workers import worker_parts

_JSON_LOGS = "--log-json"


def pod_of(fleet: Fleet, spec: ProcessSpec) -> dict[str, Any] | None:
    """None: the pool of the process is no longer in the fleet."""
    parts = _parts(fleet, spec)
    if parts is None:
        return None
    # The kubelet must not expand anything in it.
    words = [word.replace("$(", "$$(") for word in spec.arguments]
    template = pod_template(fleet, replace(parts, arguments=[*words, _JSON_LOGS]))
    return {"apiVersion": "v1", "kind": "Pod", **template}


def _parts(fleet: Fleet, spec: ProcessSpec) -> PodParts | None:
    if spec.role == "controller":
        return controller_parts(fleet)
    if spec.role == "gateway":
        group = gateway_group(spec.name, fleet)
        return gateway_parts(fleet, group) if group in fleet.gateways else None
    return worker_parts(fleet, spec.pool) if spec.pool in fleet.pools else None
