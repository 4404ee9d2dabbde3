"""Protobuf descriptors of two standard services that gRPC tools use: health (grpc.health.v1) and server reflection.

The messages are built in a separate descriptor pool. So grpcio's packages are not needed, and do not conflict if they
are installed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING, _BYTES, _INT32, _ENUM, _MESSAGE = 9, 12, 5, 14, 11
_OPTIONAL, _REPEATED = 1, 3


def _message(file: Any, name: str, *fields: tuple[str, int, int, int, str]) -> Any:
    message = file.message_type.add(name=name)
    for field, number, kind, label, type_name in fields:
        message.field.add(name=field, number=number, type=kind, label=label, type_name=type_name or None)
    return message


def _health_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="grpc/health/v1/health.proto", package="grpc.health.v1")
    file.syntax = "proto3"
    own = ".grpc.health.v1."
    _message(file, "HealthCheckRequest", ("service", 1, _STRING, _OPTIONAL, ""))
    status = own + "HealthCheckResponse.ServingStatus"
    response = _message(file, "HealthCheckResponse", ("status", 1, _ENUM, _OPTIONAL, status))
    serving = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        serving.value.add(name=name, number=number)
    _message(file, "HealthListRequest")
    entry = own + "HealthListResponse.StatusesEntry"
    listing = _message(file, "HealthListResponse", ("statuses", 1, _MESSAGE, _REPEATED, entry))
    pair = listing.nested_type.add(name="StatusesEntry")
    pair.field.add(name="key", number=1, type=_STRING, label=_OPTIONAL)
    pair.field.add(name="value", number=2, type=_MESSAGE, label=_OPTIONAL, type_name=own + "HealthCheckResponse")
    pair.options.map_entry = True
    service = file.service.add(name="Health")
    check = {"input_type": own + "HealthCheckRequest", "output_type": own + "HealthCheckResponse"}
    service.method.add(name="Check", **check)
    service.method.add(name="List", input_type=own + "HealthListRequest", output_type=own + "HealthListResponse")
    service.method.add(name="Watch", server_streaming=True, **check)
    return file


def _reflection_file(package: str, name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    own = f".{package}."
    _message(
        file,
        "ExtensionRequest",
        ("containing_type", 1, _STRING, _OPTIONAL, ""),
        ("extension_number", 2, _INT32, _OPTIONAL, ""),
    )
    request = _message(
        file,
        "ServerReflectionRequest",
        ("host", 1, _STRING, _OPTIONAL, ""),
        ("file_by_filename", 3, _STRING, _OPTIONAL, ""),
        ("file_containing_symbol", 4, _STRING, _OPTIONAL, ""),
        ("file_containing_extension", 5, _MESSAGE, _OPTIONAL, own + "ExtensionRequest"),
        ("all_extension_numbers_of_type", 6, _STRING, _OPTIONAL, ""),
        ("list_services", 7, _STRING, _OPTIONAL, ""),
    )
    _one_of(request, "message_request", range(1, 6))
    _message(file, "FileDescriptorResponse", ("file_descriptor_proto", 1, _BYTES, _REPEATED, ""))
    _message(
        file,
        "ExtensionNumberResponse",
        ("base_type_name", 1, _STRING, _OPTIONAL, ""),
        ("extension_number", 2, _INT32, _REPEATED, ""),
    )
    _message(file, "ServiceResponse", ("name", 1, _STRING, _OPTIONAL, ""))
    _message(file, "ListServiceResponse", ("service", 1, _MESSAGE, _REPEATED, own + "ServiceResponse"))
    _message(
        file,
        "ErrorResponse",
        ("error_code", 1, _INT32, _OPTIONAL, ""),
        ("error_message", 2, _STRING, _OPTIONAL, ""),
    )
    response = _message(
        file,
        "ServerReflectionResponse",
        ("valid_host", 1, _STRING, _OPTIONAL, ""),
        ("original_request", 2, _MESSAGE, _OPTIONAL, own + "ServerReflectionRequest"),
        ("file_descriptor_response", 4, _MESSAGE, _OPTIONAL, own + "FileDescriptorResponse"),
        ("all_extension_numbers_response", 5, _MESSAGE, _OPTIONAL, own + "ExtensionNumberResponse"),
        ("list_services_response", 6, _MESSAGE, _OPTIONAL, own + "ListServiceResponse"),
        ("error_response", 7, _MESSAGE, _OPTIONAL, own + "ErrorResponse"),
    )
    _one_of(response, "message_response", range(2, 6))
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=own + "ServerReflectionRequest",
        output_type=own + "ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


def _one_of(message: Any, name: str, fields: range) -> None:
    message.oneof_decl.add(name=name)
    for index in fields:
        message.field[index].oneof_index = 0


pool = descriptor_pool.DescriptorPool()
REFLECTION_PACKAGES = {
    "grpc.reflection.v1": "grpc/reflection/v1/reflection.proto",
    "grpc.reflection.v1alpha": "grpc/reflection/v1alpha/reflection.proto",
}
for _file in [_health_file(), *(_reflection_file(package, name) for package, name in REFLECTION_PACKAGES.items())]:
    pool.Add(_file)


def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
