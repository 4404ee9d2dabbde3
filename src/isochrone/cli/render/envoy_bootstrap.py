"""The configuration of an Envoy that asks a picker. Pure: settings in, Envoy's bootstrap out.

One listener takes HTTP/1.1 and HTTP/2. The ext_proc filter asks the picker, which names a worker in a header, and a
cluster of the type ORIGINAL_DST connects to the address in that header. A header of that name from a client is removed
first: a client that could set it would reach any address through this Envoy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DESTINATION = "x-gateway-destination-endpoint"
BODY_MODES = ("NONE", "STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED")
_TYPE = "type.googleapis.com/envoy.extensions."
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PICKED, _PICKER, _FALLBACK = "picked_worker", "picker", "fallback"


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """The settings of an Envoy in front of workers."""

    #: Where clients connect to.
    listen: tuple[str, int]
    picker: tuple[str, int]
    #: How it shows bodies to the picker; a ``BODY_MODES``.
    body_mode: str = "FULL_DUPLEX_STREAMED"
    #: Workers that get requests in turn while the picker is away; none: such requests are answered 500.
    fallback: tuple[tuple[str, int], ...] = ()
    #: Of its admin page; None: it has none.
    admin: tuple[str, int] | None = None
    #: Seconds that the picker may take for a reply.
    message_timeout: float = 1.0


def bootstrap(settings: EnvoySettings) -> dict[str, Any]:
    """The whole configuration, as Envoy reads it from a file."""
    clusters = [_picker(settings.picker), _picked()]
    if settings.fallback:
        clusters.append(_fallback(settings.fallback))
    document: dict[str, Any] = {"static_resources": {"listeners": [_listener(settings)], "clusters": clusters}}
    if settings.admin is not None:
        document["admin"] = {"address": _address(settings.admin)}
    return document


def _listener(settings: EnvoySettings) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "inference",
        "route_config": {
            "virtual_hosts": [{"name": "inference", "domains": ["*"], "routes": _routes(bool(settings.fallback))}]
        },
        "http_filters": [_without_destination(), _ext_proc(settings), _filter("router", "router.v3.Router", {})],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": "inference", "address": _address(settings.listen), "filter_chains": [chain]}


def _routes(has_fallback: bool) -> list[dict[str, Any]]:
    # The picker keeps deadlines. Envoy's own limit of 15 seconds would cut long answers off.
    picked = {"cluster": _PICKED, "timeout": "0s"}
    if not has_fallback:
        return [{"match": {"prefix": "/"}, "route": picked}]
    named = {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]}
    return [
        {"match": named, "route": picked},
        {"match": {"prefix": "/"}, "route": {"cluster": _FALLBACK, "timeout": "0s"}},
    ]


def _without_destination() -> dict[str, Any]:
    mutations = {"mutations": {"request_mutations": [{"remove": DESTINATION}]}}
    return _filter("header_mutation", "header_mutation.v3.HeaderMutation", mutations)


def _ext_proc(settings: EnvoySettings) -> dict[str, Any]:
    # Where the body decides, trailers say that none will come: the request would pass the picker by otherwise.
    decides_by_body = settings.body_mode in ("BUFFERED", "FULL_DUPLEX_STREAMED")
    configuration = {
        "grpc_service": {"envoy_grpc": {"cluster_name": _PICKER}},
        "failure_mode_allow": bool(settings.fallback),
        "message_timeout": f"{settings.message_timeout:g}s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": settings.body_mode,
            "request_trailer_mode": "SEND" if decides_by_body else "SKIP",
            # By these the picker knows how the worker answered; load reports of gRPC are in trailers.
            "response_header_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    }
    return _filter("ext_proc", "ext_proc.v3.ExternalProcessor", configuration)


def _filter(name: str, kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"envoy.filters.http.{name}",
        "typed_config": {"@type": f"{_TYPE}filters.http.{kind}", **configuration},
    }


def _picker(address: tuple[str, int]) -> dict[str, Any]:
    return {
        "name": _PICKER,
        "type": "STRICT_DNS",
        "connect_timeout": "0.5s",
        **_protocols({"explicit_http_config": {"http2_protocol_options": {}}}),
        "load_assignment": _assignment(_PICKER, (address,)),
    }


def _picked() -> dict[str, Any]:
    return {
        "name": _PICKED,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "0.5s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        **_protocols(_AS_THE_CLIENT),
    }


def _fallback(workers: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    return {
        "name": _FALLBACK,
        "type": "STRICT_DNS",
        "connect_timeout": "0.5s",
        **_protocols(_AS_THE_CLIENT),
        "load_assignment": _assignment(_FALLBACK, workers),
    }


#: HTTP/1.1 stays HTTP/1.1, and gRPC stays HTTP/2: workers speak both on one port.
_AS_THE_CLIENT: dict[str, Any] = {
    "use_downstream_protocol_config": {"http_protocol_options": {}, "http2_protocol_options": {}}
}


def _protocols(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {"@type": f"type.googleapis.com/{_HTTP_OPTIONS}", **options}
        }
    }


def _assignment(name: str, addresses: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    members = [{"endpoint": {"address": _address(address)}} for address in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": members}]}


def _address(address: tuple[str, int]) -> dict[str, Any]:
    return {"socket_address": {"address": address[0], "port_value": address[1]}}
