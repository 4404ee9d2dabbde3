"""The messages of xDS that this package reads and writes, as protobuf classes.

Names and numbers are those of Envoy's API, version 3 (github.com/envoyproxy/envoy, folder api), with the fields that
are used here. They are built here, because the package that carries all of them (xds-protos) also owns the top-level
packages ``envoy``, ``google.rpc``, ``opentelemetry`` and ``test``, where it collides with others.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    wrappers_pb2,
)

_ANY, _DURATION, _STRUCT = "google.protobuf.Any", "google.protobuf.Duration", "google.protobuf.Struct"
_BOOL, _UINT32 = "google.protobuf.BoolValue", "google.protobuf.UInt32Value"
_CORE = "envoy.config.core.v3"
_ROUTE = "envoy.config.route.v3"

#: Package → message → fields, as in a .proto file; a map's type has a message of its own, whose name ends in "Entry".
#: Enums are numbers. A package may use those before it.
PACKAGES: dict[str, dict[str, str]] = {
    "google.rpc": {"Status": "int32 code = 1; string message = 2"},
    "envoy.type.v3": {"FractionalPercent": "uint32 numerator = 1; enum denominator = 2"},
    "envoy.type.matcher.v3": {
        "RegexMatcher": "string regex = 2",
        "StringMatcher": "string exact = 1",
    },
    _CORE: {
        "Node": f"string id = 1; string cluster = 2; {_STRUCT} metadata = 3; string user_agent_name = 6",
        "Locality": "string region = 1; string zone = 2; string sub_zone = 3",
        "SocketAddress": "string address = 2; uint32 port_value = 3",
        "Address": "SocketAddress socket_address = 1",
        "AggregatedConfigSource": "",
        "ConfigSource": "AggregatedConfigSource ads = 3; enum resource_api_version = 6",
        "TypedExtensionConfig": f"string name = 1; {_ANY} typed_config = 2",
        "HeaderValue": "string key = 1; string value = 2",
        "HeaderValueOption": "HeaderValue header = 1; enum append_action = 3",
        "RuntimeFractionalPercent": "envoy.type.v3.FractionalPercent default_value = 1",
        "DataSource": "string inline_string = 3",
        "Http1ProtocolOptions": "",
        "KeepaliveSettings": f"{_DURATION} interval = 1; {_DURATION} timeout = 2",
        "Http2ProtocolOptions": "KeepaliveSettings connection_keepalive = 15",
    },
    "envoy.service.discovery.v3": {
        "DiscoveryRequest": f"string version_info = 1; {_CORE}.Node node = 2; repeated string resource_names = 3; "
        "string type_url = 4; string response_nonce = 5; google.rpc.Status error_detail = 6",
        "DiscoveryResponse": f"string version_info = 1; repeated {_ANY} resources = 2; string type_url = 4; "
        "string nonce = 5",
    },
    "envoy.config.endpoint.v3": {
        "Endpoint": f"{_CORE}.Address address = 1; string hostname = 3",
        "LbEndpoint": "Endpoint endpoint = 1; enum health_status = 2",
        "LocalityLbEndpoints": f"{_CORE}.Locality locality = 1; repeated LbEndpoint lb_endpoints = 2; "
        f"{_UINT32} load_balancing_weight = 3",
        "ClusterLoadAssignment": "string cluster_name = 1; repeated LocalityLbEndpoints endpoints = 2",
    },
    "envoy.config.cluster.v3": {
        "LoadBalancingPolicy": "repeated LoadBalancingPolicy.Policy policies = 1",
        "LoadBalancingPolicy.Policy": f"{_CORE}.TypedExtensionConfig typed_extension_config = 4",
        "CircuitBreakers": "repeated CircuitBreakers.Thresholds thresholds = 1",
        "CircuitBreakers.Thresholds": f"{_UINT32} max_connections = 2; {_UINT32} max_pending_requests = 3; "
        f"{_UINT32} max_requests = 4; {_UINT32} max_retries = 5",
        "OutlierDetection": f"{_DURATION} interval = 2; {_DURATION} base_ejection_time = 3; "
        f"{_UINT32} max_ejection_percent = 4; {_UINT32} enforcing_consecutive_5xx = 5; "
        f"{_UINT32} enforcing_success_rate = 6; bool split_external_local_origin_errors = 12; "
        f"{_UINT32} consecutive_local_origin_failure = 13; {_UINT32} enforcing_local_origin_success_rate = 15; "
        f"{_DURATION} max_ejection_time = 21",
        "Cluster": "string name = 1; enum type = 2; Cluster.EdsClusterConfig eds_cluster_config = 3; "
        f"{_DURATION} connect_timeout = 4; CircuitBreakers circuit_breakers = 10; "
        "OutlierDetection outlier_detection = 19; bool ignore_health_on_host_removal = 32; "
        "repeated Cluster.TypedExtensionProtocolOptionsEntry typed_extension_protocol_options = 36; "
        "LoadBalancingPolicy load_balancing_policy = 41",
        "Cluster.EdsClusterConfig": f"{_CORE}.ConfigSource eds_config = 1",
        "Cluster.TypedExtensionProtocolOptionsEntry": f"string key = 1; {_ANY} value = 2",
    },
    _ROUTE: {
        "HeaderMatcher": "string name = 1; bool present_match = 7; bool invert_match = 8; "
        "envoy.type.matcher.v3.StringMatcher string_match = 13",
        "RouteMatch": "string prefix = 1; repeated HeaderMatcher headers = 6; "
        f"{_CORE}.RuntimeFractionalPercent runtime_fraction = 9; envoy.type.matcher.v3.RegexMatcher safe_regex = 10; "
        "string path_separated_prefix = 14",
        "RetryPolicy": f"string retry_on = 1; {_UINT32} num_retries = 2; RetryPolicy.RetryBackOff retry_back_off = 8",
        "RetryPolicy.RetryBackOff": f"{_DURATION} base_interval = 1; {_DURATION} max_interval = 2",
        "WeightedCluster": "repeated WeightedCluster.ClusterWeight clusters = 1",
        "WeightedCluster.ClusterWeight": f"string name = 1; {_UINT32} weight = 2",
        "RouteAction": "string cluster = 1; WeightedCluster weighted_clusters = 3; string prefix_rewrite = 5; "
        f"{_BOOL} auto_host_rewrite = 7; {_DURATION} timeout = 8",
        "DirectResponseAction": f"uint32 status = 1; {_CORE}.DataSource body = 2",
        "Route": "RouteMatch match = 1; RouteAction route = 2; DirectResponseAction direct_response = 7; "
        f"repeated {_CORE}.HeaderValueOption request_headers_to_add = 9; "
        "repeated string request_headers_to_remove = 12",
        "VirtualHost": "string name = 1; repeated string domains = 2; repeated Route routes = 3; "
        f"repeated {_CORE}.HeaderValueOption request_headers_to_add = 7; RetryPolicy retry_policy = 16",
        "RouteConfiguration": "string name = 1; repeated VirtualHost virtual_hosts = 2",
    },
    "envoy.config.listener.v3": {
        "ApiListener": f"{_ANY} api_listener = 1",
        "Filter": f"string name = 1; {_ANY} typed_config = 4",
        "FilterChain": "repeated Filter filters = 3",
        "Listener": f"string name = 1; {_CORE}.Address address = 2; repeated FilterChain filter_chains = 3; "
        "ApiListener api_listener = 19",
    },
    "envoy.extensions.filters.http.router.v3": {"Router": ""},
    "envoy.extensions.filters.network.http_connection_manager.v3": {
        "Rds": f"{_CORE}.ConfigSource config_source = 1; string route_config_name = 2",
        "HttpFilter": f"string name = 1; {_ANY} typed_config = 4",
        "HttpConnectionManager": "enum codec_type = 1; string stat_prefix = 2; Rds rds = 3; "
        "repeated HttpFilter http_filters = 5",
    },
    "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3": {
        "ClientSideWeightedRoundRobin": f"{_DURATION} blackout_period = 3; {_DURATION} weight_expiration_period = 4; "
        f"{_DURATION} weight_update_period = 5",
    },
    "envoy.extensions.upstreams.http.v3": {
        "HttpProtocolOptions": "HttpProtocolOptions.ExplicitHttpConfig explicit_http_config = 3",
        "HttpProtocolOptions.ExplicitHttpConfig": f"{_CORE}.Http1ProtocolOptions http_protocol_options = 1; "
        f"{_CORE}.Http2ProtocolOptions http2_protocol_options = 2",
    },
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "enum": _Field.TYPE_INT32,
}


def _file(package: str, messages: dict[str, str], before: list[str]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(before)
    made: dict[str, Any] = {}
    # A message before those inside it.
    for name in sorted(messages):
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        made[name].options.map_entry = inner.endswith("Entry")
    for name, fields in messages.items():
        for text in filter(None, fields.split("; ")):
            left, number = text.split(" = ")
            *repeated, kind, field_name = left.split()
            field = made[name].field.add(name=field_name, number=int(number))
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{kind}" if kind.startswith(("envoy.", "google.")) else f".{package}.{kind}"
    return file


# A pool of its own: a process may have the generated modules as well.
_pool = descriptor_pool.DescriptorPool()
_files: list[str] = []
for _known in (any_pb2, duration_pb2, struct_pb2, wrappers_pb2):
    _pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
    _files.append(_known.DESCRIPTOR.name)
for _package, _messages in PACKAGES.items():
    _pool.AddSerializedFile(_file(_package, _messages, _files).SerializeToString())
    _files.append(f"{_package}.proto")


def descriptor(name: str) -> Any:
    return _pool.FindMessageTypeByName(name)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(descriptor(name))


DiscoveryRequest = _class("envoy.service.discovery.v3.DiscoveryRequest")
DiscoveryResponse = _class("envoy.service.discovery.v3.DiscoveryResponse")
Listener = _class("envoy.config.listener.v3.Listener")
VirtualHost = _class("envoy.config.route.v3.VirtualHost")
RouteConfiguration = _class("envoy.config.route.v3.RouteConfiguration")
Cluster = _class("envoy.config.cluster.v3.Cluster")
ClusterLoadAssignment = _class("envoy.config.endpoint.v3.ClusterLoadAssignment")
HttpConnectionManager = _class("envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager")
Router = _class("envoy.extensions.filters.http.router.v3.Router")
HttpProtocolOptions = _class("envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
ClientSideWeightedRoundRobin = _class(
    "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin"
)

ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
URL = "type.googleapis.com/"


def type_url(kind: Any) -> str:
    return URL + str(kind.DESCRIPTOR.full_name)


def packed(message: Any) -> dict[str, Any]:
    """A message as the value of a field of type Any. The same message gives the same bytes."""
    return {"type_url": type_url(message), "value": message.SerializeToString(deterministic=True)}
