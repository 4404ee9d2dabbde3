"""NetworkPolicies: to and from the fleet's pods, nothing is allowed but the flows that a fleet has. Pure.

Callers send requests to gateways; gateways call workers and read their metrics; controllers load models on workers and
read the gateways' counts; all of them use the store and DNS; Prometheus reads metrics. The control API does not
authenticate users, so that only pods with a label of their own reach it (``kubectl port-forward`` needs no policy).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from isochrone.control.fleet.derived.outside_servers import outside_servers
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.autoscaling import has_scaler
from isochrone.engines.kubernetes.render.command_lines import repositories
from isochrone.engines.kubernetes.render.pods import metadata
from isochrone.models.sources.locations import is_url
from isochrone.store.etcd.address import read_address, split_password

#: Where a server that speaks S3 is, for obstore.
ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_WORKER_PORTS = (names.HTTP_PORT, names.GRPC_PORT, names.METRICS_PORT)

Rule = dict[str, Any]


def network_policies(fleet: Fleet) -> list[dict[str, Any]]:
    found = [_default_deny(fleet), _everyone(fleet), _controllers(fleet)]
    if fleet.gateways:
        found.append(_gateways(fleet))
    if names.started_pools(fleet):
        found.append(_workers(fleet))
    return found


def _default_deny(fleet: Fleet) -> dict[str, Any]:
    """For the pods of the fleet alone: its namespace may have others, such as an etcd."""
    return _policy(fleet, "default-deny", names.fleet_selector(fleet), [], [])


def _everyone(fleet: Fleet) -> dict[str, Any]:
    """DNS and the store, for all pods of the fleet. Clusters differ in where DNS answers and in its labels: pods of any
    namespace, or an address of the node (NodeLocal DNSCache). So only its port is fixed."""
    dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
    return _policy(fleet, "dns-and-store", names.fleet_selector(fleet), None, [dns, *_store(fleet)])


def _store(fleet: Fleet) -> list[Rule]:
    """Towards etcd: the namespace of a Service, the block of an address, or else its port anywhere."""
    rules = []
    for endpoint in read_address(split_password(fleet.store.url)[0]).endpoints:
        split = urlsplit(endpoint)
        rules.append(_egress(_place(fleet, split.hostname or ""), (split.port or 2379,)))
    return _once(rules)


def _place(fleet: Fleet, host: str) -> Rule | None:
    """A peer for a host; None: any."""
    if (block := _block(host)) is not None:
        return block
    labels = host.removesuffix(".cluster.local").split(".")
    # A name with dots is a Service's only if it says so: etcd.example.com is outside.
    if len(labels) == 1:
        return _namespace(names.namespace(fleet))
    return _namespace(labels[-2]) if len(labels) >= 3 and labels[-1] == "svc" else None


def _gateways(fleet: Fleet) -> dict[str, Any]:
    selector = names.role_selector(fleet, "gateway")
    clients = fleet.kubernetes.client_namespaces
    allowed = {"namespaceSelector": {"matchLabels": dict(clients)}} if clients else None
    ingress = [_ingress(allowed, (names.GATEWAY_PORT,)), _monitoring(fleet)]
    # The evaluation of a canary reads each gateway's counts.
    ingress.append(_ingress(_pods(names.control_selector(fleet)), (names.METRICS_PORT,)))
    egress = [_egress(_pods(names.role_selector(fleet, "worker")), _WORKER_PORTS), *_outside(fleet)]
    return _policy(fleet, "gateways", selector, ingress, egress)


def _workers(fleet: Fleet) -> dict[str, Any]:
    selector = names.role_selector(fleet, "worker")
    ingress = [
        _ingress(_pods(names.role_selector(fleet, "gateway")), _WORKER_PORTS),
        _ingress(_pods(names.control_selector(fleet)), (names.HTTP_PORT,)),
        _monitoring(fleet),
    ]
    return _policy(fleet, "workers", selector, ingress, object_stores(fleet))


def _controllers(fleet: Fleet) -> dict[str, Any]:
    clients = {"podSelector": {"matchLabels": {names.CLIENT_LABEL: "true"}}}
    egress = [
        _egress(_pods(names.role_selector(fleet, "worker")), (names.HTTP_PORT,)),
        _egress(_pods(names.role_selector(fleet, "gateway")), (names.METRICS_PORT,)),
        *_outside(fleet),
        *object_stores(fleet),
    ]
    ingress = [_ingress(clients, (names.CONTROL_PORT,))]
    if has_scaler(fleet):
        ingress.append(_ingress(_namespace(fleet.kubernetes.keda_namespace), (names.SCALER_PORT,)))
    return _policy(fleet, "controllers", names.control_selector(fleet), ingress, egress)


def _monitoring(fleet: Fleet) -> Rule:
    return _ingress(_namespace(fleet.kubernetes.monitoring_namespace), (names.METRICS_PORT,))


def _outside(fleet: Fleet) -> list[Rule]:
    """Towards servers that run elsewhere (``addresses``)."""
    rules = []
    for server in outside_servers(fleet).values():
        upstream = server.upstream
        ports = (port for port in (upstream.port, upstream.grpc_port, upstream.metrics_port) if port)
        rules.append(_egress(_block(upstream.host), tuple(dict.fromkeys(ports))))
    return _once(rules)


def object_stores(fleet: Fleet) -> list[Rule]:
    """Towards object stores, where a repository is a URL: 443; 80 for the credentials that a machine's metadata service
    gives; the ports of the URLs and of the endpoint."""
    every = (path for pool in names.started_pools(fleet) for path in repositories(fleet, pool))
    urls = [path for path in every if is_url(path)]
    given = (_port(url) for url in (*urls, fleet.kubernetes.env.get(ENDPOINT_VARIABLE, "")))
    return [_egress(None, dict.fromkeys((443, 80, *filter(None, given))))] if urls else []


def _port(url: str) -> int | None:
    """The port that a URL names; None: none, or none that exists."""
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _policy(
    fleet: Fleet, name: str, selector: dict[str, str], ingress: list[Rule] | None, egress: list[Rule]
) -> dict[str, Any]:
    """A policy. ``ingress`` None: it does not concern what comes in."""
    rules: dict[str, Any] = {}
    if ingress is not None:
        rules["ingress"] = ingress
    rules["egress"] = egress
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(fleet, name),
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": [kind.capitalize() for kind in rules],
            **rules,
        },
    }


def _ingress(peer: Rule | None, ports: Iterable[int]) -> Rule:
    return {"from": [peer], "ports": _ports(ports)} if peer is not None else {"ports": _ports(ports)}


def _egress(peer: Rule | None, ports: Iterable[int]) -> Rule:
    return {"to": [peer], "ports": _ports(ports)} if peer is not None else {"ports": _ports(ports)}


def _ports(ports: Iterable[int]) -> list[Rule]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _pods(selector: dict[str, str]) -> Rule:
    return {"podSelector": {"matchLabels": selector}}


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}}


def _block(host: str) -> Rule | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}


def _once(rules: list[Rule]) -> list[Rule]:
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]
