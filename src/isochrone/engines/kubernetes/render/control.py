"""The controllers: a Deployment and a Service, and the ConfigMap with the fleet.yaml. Pure.

Their names need not be stable: of the controllers in the store only the leader counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import command_lines, probes, scheduling, volumes
from isochrone.engines.kubernetes.render.autoscaling import has_scaler, trigger_authentication
from isochrone.engines.kubernetes.render.disruption import budget
from isochrone.engines.kubernetes.render.pods import PodParts, has_tls, image, metadata, pod_template

#: A controller has no requests in flight that it could finish.
_EXIT_SECONDS = 10.0


def control_objects(fleet: Fleet, text: str) -> list[dict[str, Any]]:
    """``text``: the fleet.yaml, without a password."""
    selector = names.control_selector(fleet)
    return [
        fleet_map(fleet, text),
        _service(fleet),
        _deployment(fleet, text),
        budget(fleet, names.CONTROL, selector),
        *([trigger_authentication(fleet)] if has_scaler(fleet) and has_tls(fleet) else []),
    ]


def fleet_map(fleet: Fleet, text: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(fleet, names.FLEET_MAP),
        "data": {names.FLEET_FILE: text},
    }


def _deployment(fleet: Fleet, text: str) -> dict[str, Any]:
    selector = names.control_selector(fleet)
    # A mounted file does not change in a running pod: another text makes other pods.
    annotations = {f"{names.PREFIX}/fleet": hashlib.sha256(text.encode()).hexdigest()[:16]}
    parts = replace(controller_parts(fleet), annotations=annotations, ports=_ports(fleet))
    if has_scaler(fleet):
        scaler = ("--scaler-listen", f"0.0.0.0:{names.SCALER_PORT}")
        parts = replace(parts, arguments=[*parts.arguments, *scaler])
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(fleet, names.CONTROL, selector),
        "spec": {
            "replicas": fleet.control.count,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _update(fleet)},
            "selector": {"matchLabels": selector},
            "template": pod_template(fleet, parts),
        },
    }


def controller_parts(fleet: Fleet) -> PodParts:
    """A controller that does not serve KEDA."""
    selector = names.control_selector(fleet)
    kubernetes = fleet.kubernetes
    return PodParts(
        role="controller",
        labels=names.labels(fleet, selector),
        image=image(fleet),
        arguments=command_lines.controller(fleet),
        ports={"http": names.CONTROL_PORT},
        probes=probes.of_controller(tls=has_tls(fleet)),
        resources=scheduling.resources(fleet.control, kubernetes.control_memory, kubernetes.cpu_limits),
        volumes=volumes.of_controller(fleet),
        placement=scheduling.placement(fleet.control, selector),
        grace_seconds=probes.grace_seconds(_EXIT_SECONDS),
        environment=_of_commands(fleet),
        metrics_port=0,
    )


def _of_commands(fleet: Fleet) -> dict[str, str]:
    """Variables by which ``kubectl exec deploy/control -- isochrone status`` reaches the API of its own pod."""
    tls = fleet.security.tls
    if not has_tls(fleet):
        return {}
    found = {
        "ISOCHRONE_API": f"https://localhost:{names.CONTROL_PORT}",
        "ISOCHRONE_API_CA": tls.ca,
        "ISOCHRONE_API_CERT": tls.cert,
        "ISOCHRONE_API_KEY": tls.key,
    }
    return {name: text for name, text in found.items() if text and name not in fleet.kubernetes.env}


def _update(fleet: Fleet) -> dict[str, int]:
    """A new controller first; where each needs a node of its own, there may be no node for one more."""
    apart = fleet.control.placement == "apart"
    return {"maxUnavailable": 1, "maxSurge": 0} if apart else {"maxUnavailable": 0, "maxSurge": 1}


def _ports(fleet: Fleet) -> dict[str, int]:
    return {"http": names.CONTROL_PORT, **({"grpc-scaler": names.SCALER_PORT} if has_scaler(fleet) else {})}


def _service(fleet: Fleet) -> dict[str, Any]:
    selector = names.control_selector(fleet)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, names.CONTROL, selector),
        "spec": {
            "selector": selector,
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in _ports(fleet).items()],
        },
    }
