"""Writes a routed fleet as xDS resources. Pure.

Names: the models are the listeners ``MODEL.xds.isochrone.internal`` of gRPC clients, each with a route configuration
of the same name; the listener ``xds.isochrone.internal`` has all models, chosen by the metadata ``x-isochrone-model``,
which can also name a version. Envoy has one route configuration, ``isochrone``. The clusters are
``MODEL/VERSION/http`` and ``MODEL/VERSION/grpc``, named after a version and never changed: a new version is a new
cluster, so a request never changes its version on the way.

Every route pins the version: over HTTP in the path, over gRPC in the authority (``protocol.headers.version_pins``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import quote

from isochrone.control.xds import messages
from isochrone.control.xds.snapshot import Endpoint, RoutedFleet, RoutedModel, RoutedVersion
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER
from isochrone.protocol.headers.stages import STAGES_HEADER
from isochrone.protocol.headers.version_pins import DOMAIN, model_authority, pinned_authority
from isochrone.protocol.openai.model_names import MODEL_HEADER, pinned_value

CDS = messages.type_url(messages.Cluster)
EDS = messages.type_url(messages.ClusterLoadAssignment)
LDS = messages.type_url(messages.Listener)
RDS = messages.type_url(messages.RouteConfiguration)

#: Envoy's route configuration, and the listener of an Envoy that asks for one.
ENVOY = "isochrone"
#: The calls that a pinned authority has a meaning for.
_INFERENCE_CALLS = r"/inference\.GRPCInferenceService/Model(Stream)?Infer"

#: Enums: Cluster.DiscoveryType, ApiVersion, HeaderAppendAction, FractionalPercent.DenominatorType.
_EDS_TYPE, _V3, _OVERWRITE, _MILLION = 3, 2, 2, 2
_PARTS = 1_000_000
#: Workers admit or reject by deadline and queue: the clients' own limits stay out of the way.
_UNLIMITED = 1_000_000
_ADS = {"ads": {}, "resource_api_version": _V3}


@dataclass(frozen=True, slots=True)
class _ModelPart:
    """What is made of one model alone."""

    model: RoutedModel
    clusters: Mapping[str, bytes]
    assignments: Mapping[str, bytes]
    #: Its own route configuration, and its routes in those of all models: virtual hosts with nothing else.
    routes: bytes
    grpc_routes: bytes
    http_routes: bytes
    #: The clusters that they refer to.
    grpc_clusters: frozenset[str]
    http_clusters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one moment, as bytes, and what depends on what."""

    epoch: int = 0
    #: Differs from one moment to the next.
    version: str = ""
    #: Type → name → message. What equals that of the moment before is the same object, a whole type included.
    messages: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    #: Route configuration → the clusters that it refers to.
    clusters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: By model.
    parts: Mapping[str, _ModelPart] = field(default_factory=dict, compare=False, repr=False)


def resources_of(fleet: RoutedFleet, number: int = 0, before: Resources | None = None) -> Resources:
    """``number``: counts the moments of one server. ``before``: what it made last, of which all is used again that has
    not changed."""
    before = before or Resources()
    parts = {name: _part(model, before.parts.get(name)) for name, model in fleet.models.items()}
    made = list(parts.values())
    grpc = [part.grpc_routes for part in made]
    names = {model_authority(name): part for name, part in parts.items()}
    grpc_clusters = frozenset[str]().union(*(part.grpc_clusters for part in made))
    known_routes, known_listeners = before.messages.get(RDS, {}), before.messages.get(LDS, {})
    if DOMAIN in known_routes and _same_routes(made, list(before.parts.values())):
        shared = {name: known_routes[name] for name in (DOMAIN, ENVOY)}
    else:
        http = [part.http_routes for part in made]
        shared = {DOMAIN: _route_configuration(DOMAIN, grpc), ENVOY: _route_configuration(ENVOY, [*grpc, *http])}
    listeners = {name: known_listeners.get(name) or _bytes(_api_listener(name)) for name in (*names, DOMAIN)}
    found: dict[str, dict[str, bytes]] = {
        CDS: {name: value for part in made for name, value in part.clusters.items()},
        EDS: {name: value for part in made for name, value in part.assignments.items()},
        LDS: listeners,
        RDS: {**{name: part.routes for name, part in names.items()}, **shared},
    }
    return Resources(
        fleet.epoch,
        f"{fleet.epoch}.{number}",
        {kind: _same(before.messages.get(kind), values) for kind, values in found.items()},
        {
            **{name: part.grpc_clusters for name, part in names.items()},
            DOMAIN: grpc_clusters,
            ENVOY: grpc_clusters.union(*(part.http_clusters for part in made)),
        },
        parts,
    )


def _same(known: Mapping[str, bytes] | None, made: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return known if known is not None and known == made else made


def _same_routes(made: list[_ModelPart], known: list[_ModelPart]) -> bool:
    return len(made) == len(known) and all(
        part is other or (part.grpc_routes == other.grpc_routes and part.http_routes == other.http_routes)
        for part, other in zip(made, known, strict=True)
    )


def _part(model: RoutedModel, known: _ModelPart | None) -> _ModelPart:
    if known is not None and known.model == model:
        return known
    clusters, assignments = {}, {}
    for version in model.versions.values():
        for protocol, endpoints in (("http", version.http), ("grpc", version.grpc)):
            name = cluster_name(model.name, version.version, protocol)
            # Named after a version, and never changed.
            cluster = known.clusters.get(name) if known is not None else None
            clusters[name] = cluster or _bytes(_cluster(name, protocol))
            host = pinned_authority(model.name, version.version, version.stages) if protocol == "grpc" else ""
            assignments[name] = _bytes(_assignment(name, endpoints, host))
    own, shared = list(_grpc_routes((model,), by_model=False)), list(_grpc_routes((model,), by_model=True))
    http = list(_http_routes(model))
    return _ModelPart(
        model,
        clusters,
        assignments,
        _route_configuration(model_authority(model.name), [_virtual_host(own)]),
        _virtual_host(shared),
        _virtual_host(http),
        frozenset(_referred(own)),
        frozenset(_referred(http)),
    )


def cluster_name(model: str, version: str, protocol: str) -> str:
    return f"{quote(model, safe='')}/{version}/{protocol}"


def envoy_listener(host: str, port: int) -> bytes:
    """A listener for HTTP and gRPC, for an Envoy that wants one of its control plane."""
    manager = messages.HttpConnectionManager(
        stat_prefix=ENVOY,
        rds={"config_source": _ADS, "route_config_name": ENVOY},
        http_filters=[{"name": "envoy.filters.http.router", "typed_config": messages.packed(messages.Router())}],
    )
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": messages.packed(manager)}
    address = {"socket_address": {"address": host, "port_value": port}}
    return _bytes(messages.Listener(name=ENVOY, address=address, filter_chains=[{"filters": [chain]}]))


# Routes.


def _grpc_routes(models: Iterable[RoutedModel], *, by_model: bool) -> Iterator[dict[str, Any]]:
    """``by_model``: they are for many models, which the metadata tells apart."""
    key = MODEL_HEADER.decode()
    for model in models:
        for version in model.versions:
            named = _header(key, pinned_value(model.name, version).decode())
            yield _grpc_route(_call(named), cluster=cluster_name(model.name, version, "grpc"))
        yield from _by_share(model, _header(key, pinned_value(model.name, "").decode()))
        if not by_model:
            # Without the metadata. A version that is not committed has no route.
            yield from _by_share(model, {"name": key, "present_match": True, "invert_match": True})


def _by_share(model: RoutedModel, chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The routes of calls that name no version."""
    stable = cluster_name(model.name, model.version, "grpc")
    if not model.canary or not model.versions[model.canary].grpc:
        yield _grpc_route(_call(chosen), cluster=stable)
        return
    canary = cluster_name(model.name, model.canary, "grpc")
    for word, to in (("always", canary), ("never", stable)):
        if model.canary_header:
            yield _grpc_route(_call(chosen, _header(model.canary_header, word)), cluster=to)
    share = round(model.share * _PARTS)
    weights = [(stable, _PARTS - share), (canary, share)]
    split = {"clusters": [{"name": name, "weight": {"value": weight}} for name, weight in weights if weight]}
    yield _grpc_route(_call(chosen), weighted_clusters=split)


def _grpc_route(match: dict[str, Any], **to: Any) -> dict[str, Any]:
    return {"match": match, "route": {**to, "auto_host_rewrite": {"value": True}, "timeout": {}}}


def _call(*headers: dict[str, Any]) -> dict[str, Any]:
    return {"safe_regex": {"regex": _INFERENCE_CALLS}, "headers": list(headers)}


def _http_routes(model: RoutedModel) -> Iterator[dict[str, Any]]:
    path = f"/v2/models/{quote(model.name, safe='')}"
    for version in model.versions.values():
        yield _http_route(model, version, {"path_separated_prefix": f"{path}/versions/{version.version}"})
    error = json.dumps({"error": f"model '{model.name}' has no such version in the committed epoch"})
    named = {"path_separated_prefix": f"{path}/versions"}
    yield {"match": named, "direct_response": {"status": 404, "body": {"inline_string": error}}}
    stable = model.versions[model.version]
    if model.canary and model.versions[model.canary].http:
        # A split by weight cannot rewrite the path to the version that was drawn.
        canary, any_path = model.versions[model.canary], {"path_separated_prefix": path}
        for word, version in (("always", canary), ("never", stable)):
            if model.canary_header:
                chosen = {**any_path, "headers": [_header(model.canary_header, word)]}
                yield _http_route(model, version, chosen, pins=True)
        share = {"default_value": {"numerator": round(model.share * _PARTS), "denominator": _MILLION}}
        yield _http_route(model, canary, {**any_path, "runtime_fraction": share}, pins=True)
    yield _http_route(model, stable, {"path_separated_prefix": path}, pins=True)


def _http_route(
    model: RoutedModel, version: RoutedVersion, match: dict[str, Any], *, pins: bool = False
) -> dict[str, Any]:
    action: dict[str, Any] = {"cluster": cluster_name(model.name, version.version, "http"), "timeout": {}}
    if pins:
        action["prefix_rewrite"] = f"/v2/models/{quote(model.name, safe='')}/versions/{version.version}"
    # Which versions stages run is the epoch's to say, not the caller's.
    stages = STAGES_HEADER.decode()
    if version.stages:
        added = [_added(stages, version.stages.decode("ascii"))]
        return {"match": match, "route": action, "request_headers_to_add": added}
    return {"match": match, "route": action, "request_headers_to_remove": [stages]}


def _header(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "string_match": {"exact": value}}


def _added(name: str, value: str) -> dict[str, Any]:
    return {"header": {"key": name, "value": value}, "append_action": _OVERWRITE}


def _retries() -> dict[str, Any]:
    """On another endpoint, for calls that a worker's end interrupted. The last word is gRPC's, the others Envoy's."""
    pause = {"base_interval": {"nanos": 10_000_000}, "max_interval": {"nanos": 100_000_000}}
    conditions = "connect-failure,refused-stream,reset,unavailable"
    return {"retry_on": conditions, "num_retries": {"value": 3}, "retry_back_off": pause}


def _referred(routes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for route in routes:
        action = route.get("route", {})
        if "cluster" in action:
            yield action["cluster"]
        for weighted in action.get("weighted_clusters", {}).get("clusters", ()):
            yield weighted["name"]


# Messages.


def _bytes(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _virtual_host(routes: list[dict[str, Any]]) -> bytes:
    return _bytes(messages.VirtualHost(routes=routes))


def _route_configuration(name: str, routes: Iterable[bytes]) -> bytes:
    """``routes``: virtual hosts, whose routes become those of one."""
    configuration = messages.RouteConfiguration(
        name=name, virtual_hosts=[{"name": name, "domains": ["*"], "retry_policy": _retries()}]
    )
    (host,) = configuration.virtual_hosts
    if name == ENVOY:
        # gRPC workers report their load on pinned calls without being asked.
        host.request_headers_to_add.add(**_added(ORCA_FORMAT_HEADER.decode(), "json"))
    # Encoded messages in a row are one message with the repeated fields of all.
    host.MergeFromString(b"".join(routes))
    return _bytes(configuration)


def _api_listener(name: str) -> Any:
    manager = messages.HttpConnectionManager(
        rds={"config_source": _ADS, "route_config_name": name},
        http_filters=[{"name": "router", "typed_config": messages.packed(messages.Router())}],
    )
    return messages.Listener(name=name, api_listener={"api_listener": messages.packed(manager)})


def _cluster(name: str, protocol: str) -> Any:
    # Weights follow the load reports within seconds; the defaults are made for backends that stay the same for minutes.
    weighing = messages.ClientSideWeightedRoundRobin(
        blackout_period={"seconds": 1}, weight_expiration_period={"seconds": 30}, weight_update_period={"seconds": 1}
    )
    policy = {
        "name": "envoy.load_balancing_policies.client_side_weighted_round_robin",
        "typed_config": messages.packed(weighing),
    }
    # Envoy's calls on a connection that is dead without a word fail after these, and are sent to another worker.
    alive = {"connection_keepalive": {"interval": {"seconds": 5}, "timeout": {"seconds": 5}}}
    versions: dict[str, Any] = (
        {"http_protocol_options": {}} if protocol == "http" else {"http2_protocol_options": alive}
    )
    options = messages.HttpProtocolOptions(explicit_http_config=versions)
    limit = {"value": _UNLIMITED}
    limits = {"max_connections": limit, "max_pending_requests": limit, "max_requests": limit, "max_retries": limit}
    cluster = messages.Cluster(
        name=name,
        type=_EDS_TYPE,
        eds_cluster_config={"eds_config": _ADS},
        connect_timeout={"seconds": 2},
        circuit_breakers={"thresholds": [limits]},
        outlier_detection=_outliers(),
        load_balancing_policy={"policies": [{"typed_extension_config": policy}]},
    )
    key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    cluster.typed_extension_protocol_options[key].MergeFrom(_any(messages.packed(options), cluster, key))
    return cluster


def _outliers() -> dict[str, Any]:
    """Envoy leaves a worker alone for seconds that it cannot connect to. Answers count for nothing, whatever their
    status: a worker that refuses what would be late is well. For gRPC clients, which know only rates, it is nothing."""
    never = {"value": 0}
    return {
        "interval": {"seconds": 1},
        "base_ejection_time": {"seconds": 5},
        "max_ejection_time": {"seconds": 30},
        "max_ejection_percent": {"value": 100},
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": {"value": 3},
        "enforcing_consecutive_5xx": never,
        "enforcing_success_rate": never,
        "enforcing_local_origin_success_rate": never,
    }


def _any(fields: Mapping[str, Any], cluster: Any, key: str) -> Any:
    """The value of a map's entry, which a constructor does not take as a mapping."""
    kind = type(cluster.typed_extension_protocol_options[key])
    return kind(**fields)


def _assignment(name: str, endpoints: tuple[Endpoint, ...], host: str) -> Any:
    """``host``: what the authority of calls becomes; "": it stays."""
    regions = []
    for region, found in groupby(sorted(endpoints, key=lambda each: each.region), lambda each: each.region):
        addresses = [{"socket_address": {"address": each.address, "port_value": each.port}} for each in found]
        lb_endpoints = [{"endpoint": {"address": address, "hostname": host}} for address in addresses]
        # By the number of workers, so that regions count as much as they have.
        weight = {"value": len(lb_endpoints)}
        regions.append({"locality": {"region": region}, "lb_endpoints": lb_endpoints, "load_balancing_weight": weight})
    return messages.ClusterLoadAssignment(cluster_name=name, endpoints=regions)
