"""NetworkPolicies of a Ray cluster: its pods reach each other, callers reach gateways, nothing else is allowed. Pure.

Ray's ports (6379, 8265, 10001 and many without a fixed number) run jobs of anyone who reaches them, and Ray may place
a process of the fleet on any of its nodes. So pods of the cluster are open to each other, and to others at the ports of
gateways, of the control API and of metrics alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isochrone.control.fleet.derived.processes import ProcessSpec, processes
from isochrone.control.fleet.settings.quantities import split_address
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render import network
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.network import egress_rule, ingress_rule, namespace_of, pods_of, policy

#: KubeRay's own label of the pods of a head.
HEAD_LABEL = {"ray.io/node-type": "head"}
#: Of Ray's metrics.
_METRICS_PORT = 8080


def ray_policies(fleet: Fleet) -> list[dict[str, Any]]:
    everyone = names.fleet_selector(fleet)
    outwards = [*network.outside(fleet), *network.object_stores(fleet)]
    # The autoscaler beside the head calls the cluster's API.
    head = {**everyone, **HEAD_LABEL}
    return [
        network.default_deny(fleet),
        network.dns_and_store(fleet),
        policy(fleet, "ray-nodes", everyone, [{"from": [pods_of(everyone)]}], [{"to": [pods_of(everyone)]}, *outwards]),
        policy(fleet, "ray-callers", everyone, _callers(fleet), None),
        policy(fleet, "ray-autoscaler", head, None, [egress_rule(None, names.API_PORTS)]),
    ]


def _callers(fleet: Fleet) -> list[dict[str, Any]]:
    """Whoever calls a process of the fleet from outside the cluster of Ray. Its ports are those of the file."""
    specs = list(processes(fleet, DIRECTORY).values())
    clients = fleet.kubernetes.client_namespaces
    callers = {"namespaceSelector": {"matchLabels": dict(clients)}} if clients else None
    operators = {"podSelector": {"matchLabels": {names.CLIENT_LABEL: "true"}}}
    monitoring = namespace_of(fleet.kubernetes.monitoring_namespace)
    metrics = [*_ports(specs, "gateway", "--metrics-port"), *_ports(specs, "worker", "--metrics-port"), _METRICS_PORT]
    allowed = (
        (callers, _ports(specs, "gateway", "--listen")),
        (operators, _ports(specs, "controller", "--listen")),
        (monitoring, metrics),
    )
    # A rule without ports would allow all of them.
    return [ingress_rule(peer, ports) for peer, ports in allowed if ports]


def _ports(specs: list[ProcessSpec], role: str, flag: str) -> list[int]:
    """The fixed ports of a role; a port of 0 is a free one, and nobody knows it."""
    found = (port for spec in specs if spec.role == role for port in _port(spec, flag))
    return list(dict.fromkeys(found))


def _port(spec: ProcessSpec, flag: str) -> Iterator[int]:
    text = spec.arguments[spec.arguments.index(flag) + 1]
    port = split_address(text)[1] if ":" in text else int(text)
    if port > 0:
        yield port
