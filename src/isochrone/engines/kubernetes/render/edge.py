"""Routes from the edge of the cluster to the gateways: the Gateway API (Envoy Gateway, Istio, …) or Istio's own. Pure.

The gateways are the data plane: they choose a worker for each request, and an edge proxy only passes requests on. A
proxy that is retrying would retry what a gateway has refused on purpose, so that Istio's retries are off.
"""

from __future__ import annotations

from typing import Any

from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.engines.kubernetes.render.pods import metadata

#: Paths of requests and the port of the Service that takes them. One route has both: of an HTTPRoute and a GRPCRoute
#: for the same host, a Gateway accepts only one (gateway-api, apis/v1/grpcroute_types.go).
_PATHS = {
    names.GATEWAY_PORT: ("/v2",),
    names.GATEWAY_GRPC_PORT: ("/inference.GRPCInferenceService", "/grpc.health.v1.Health"),
}
_GATEWAY_API = "gateway.networking.k8s.io/v1"
_ISTIO = "networking.istio.io/v1"


def edge_objects(fleet: Fleet) -> list[dict[str, Any]]:
    match fleet.kubernetes.edge.kind:
        case "gateway-api":
            return [_http_route(fleet, group) for group in fleet.gateways]
        case "istio":
            return [make(fleet, group) for group in fleet.gateways for make in (_virtual_service, _rule)]
    return []


def _hosts(fleet: Fleet, group: str) -> list[str]:
    """With several groups of gateways, each has its own hosts: gw.example.com."""
    given = fleet.kubernetes.edge.hosts
    return [f"{group}.{host}" for host in given] if len(fleet.gateways) > 1 else list(given)


def _http_route(fleet: Fleet, group: str) -> dict[str, Any]:
    namespace, slash, name = fleet.kubernetes.edge.gateway.rpartition("/")
    hosts = _hosts(fleet, group)
    rules = [
        {
            "matches": [{"path": {"type": "PathPrefix", "value": path}} for path in paths],
            "backendRefs": [{"name": group, "port": port}],
        }
        for port, paths in _PATHS.items()
    ]
    return {
        "apiVersion": _GATEWAY_API,
        "kind": "HTTPRoute",
        "metadata": metadata(fleet, group, names.gateways_selector(fleet, group)),
        "spec": {
            "parentRefs": [{"namespace": namespace, "name": name} if slash else {"name": name}],
            **({"hostnames": hosts} if hosts else {}),
            "rules": rules,
        },
    }


def _service_host(fleet: Fleet, group: str) -> str:
    return f"{group}.{names.namespace(fleet)}.svc.cluster.local"


def _virtual_service(fleet: Fleet, group: str) -> dict[str, Any]:
    host = _service_host(fleet, group)
    routes = [
        {
            "match": [{"uri": {"prefix": path}} for path in paths],
            "route": [{"destination": {"host": host, "port": {"number": port}}}],
            "retries": {"attempts": 0},
        }
        for port, paths in _PATHS.items()
    ]
    return {
        "apiVersion": _ISTIO,
        "kind": "VirtualService",
        "metadata": metadata(fleet, group, names.gateways_selector(fleet, group)),
        "spec": {"hosts": _hosts(fleet, group) or ["*"], "gateways": [fleet.kubernetes.edge.gateway], "http": routes},
    }


def _rule(fleet: Fleet, group: str) -> dict[str, Any]:
    return {
        "apiVersion": _ISTIO,
        "kind": "DestinationRule",
        "metadata": metadata(fleet, group, names.gateways_selector(fleet, group)),
        "spec": {
            "host": _service_host(fleet, group),
            "trafficPolicy": {"loadBalancer": {"simple": "LEAST_REQUEST"}},
        },
    }
