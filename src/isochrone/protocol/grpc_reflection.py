"""Two standard services every gRPC tool asks for: health (grpc.health.v1) and server reflection (v1, v1alpha).

Their small messages are described here and built in a descriptor pool of their own, so that neither grpcio's packages
are needed nor a clash arises where they are installed too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tritonclient.grpc import service_pb2

from isochrone.errors import GRPC_NOT_FOUND, IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.grpc import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    error_block,
    frame_message,
    parse,
    stopping_block,
    unpack,
)
from isochrone.protocol.message_reader import MessageReader
from isochrone.wire.exchange import Consumer, Exchange, Route

if TYPE_CHECKING:
    from collections.abc import Callable

_STRING, _BYTES, _INT32, _ENUM, _MESSAGE = 9, 12, 5, 14, 11
_OPTIONAL, _REPEATED = 1, 3
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
#: Services whose health can be asked for; "": the server's.
HEALTH_SERVICES = ("", "inference.GRPCInferenceService")
#: Bytes of one message of these services.
_MAX_MESSAGE = 64 * 1024
#: Bytes of answers that may wait on one of their streams.
_MAX_UNSENT = 1024 * 1024


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


_pool = descriptor_pool.DescriptorPool()
_packages = {
    "grpc.reflection.v1": "grpc/reflection/v1/reflection.proto",
    "grpc.reflection.v1alpha": "grpc/reflection/v1alpha/reflection.proto",
}
for _file in [_health_file(), *(_reflection_file(package, name) for package, name in _packages.items())]:
    _pool.Add(_file)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


HealthCheckRequest = _class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _class("grpc.health.v1.HealthCheckResponse")
HealthListRequest = _class("grpc.health.v1.HealthListRequest")
HealthListResponse = _class("grpc.health.v1.HealthListResponse")

REFLECTION_PATHS = tuple(f"/{package}.ServerReflection/ServerReflectionInfo".encode() for package in _packages)
_MESSAGES = {
    path: (_class(f"{package}.ServerReflectionRequest"), _class(f"{package}.ServerReflectionResponse"))
    for path, package in zip(REFLECTION_PATHS, _packages, strict=True)
}
_SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    *(f"{package}.ServerReflection" for package in _packages),
)


class _MessageStream:
    """A bidirectional call that answers each message at once."""

    def __init__(self, stream: Any, call: CallHead, answer: Callable[[bytes], bytes]) -> None:
        self._stream = stream
        self._encoding = call.encoding
        self._reader = MessageReader(_MAX_MESSAGE, stream)
        self._answer = answer
        self._over = False
        stream.send_headers(RESPONSE_HEADERS, False)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._reader.feed(data)
            while (message := self._reader.take()) is not None:
                body = unpack(*message, self._encoding, _MAX_MESSAGE)
                if self._stream.unsent > _MAX_UNSENT:
                    raise Unavailable(f"more than {_MAX_UNSENT} bytes of answers wait: read them, then ask again")
                self._stream.send_data(frame_message(self._answer(bytes(body))))
                self._reader.give_back(len(message[1]))
        except IsochroneError as error:
            self._over = True
            self._stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))

    def ended(self) -> None:
        if not self._over:
            self._over = True
            self._stream.end_with_trailers(OK_TRAILERS)

    def shed(self) -> None: ...

    def stopping(self) -> None:
        if not self._over:
            self._over = True
            self._stream.end_with_trailers(stopping_block())


class ReflectionRoute(Route):
    """ServerReflectionInfo: which services and messages there are."""

    streaming = True

    def __init__(self, call: CallHead) -> None:
        self._call = call

    def open(self, exchange: Exchange) -> Consumer:
        request, response = _MESSAGES[exchange.head.target]
        return _MessageStream(exchange, self._call, lambda body: _reflect(request, response, body))


def _reflect(request_class: Any, response_class: Any, body: bytes) -> bytes:
    request = parse(request_class, body)
    response = response_class(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for name in _SERVICES:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _add_files(response, _find(lambda pool: pool.FindFileByName(request.file_by_filename)))
        elif kind == "file_containing_symbol":
            symbol = request.file_containing_symbol
            _add_files(response, _find(lambda pool: pool.FindFileContainingSymbol(symbol)))
        elif kind is None:
            raise MalformedRequest("a reflection request names nothing to look up")
        else:
            raise KeyError(kind)
    except KeyError as error:
        response.error_response.error_code = GRPC_NOT_FOUND
        response.error_response.error_message = f"not found: {error}"
    return bytes(response.SerializeToString())


def _find(look_up: Callable[[Any], Any]) -> Any:
    try:
        return look_up(_pool)
    except KeyError:
        return look_up(service_pb2.DESCRIPTOR.pool)


def _add_files(response: Any, file: Any) -> None:
    """A file and all it imports, each once: clients need them to build the messages."""
    seen: dict[str, bytes] = {}

    def visit(current: Any) -> None:
        if current.name in seen:
            return
        seen[current.name] = current.serialized_pb
        for dependency in current.dependencies:
            visit(dependency)

    visit(file)
    response.file_descriptor_response.file_descriptor_proto.extend(seen.values())


class HealthWatchRoute(Route):
    """Health.Watch: the status now, and whenever it changes, until the client ends the call."""

    streaming = True

    def __init__(self, is_ready: Callable[[], bool], call: CallHead) -> None:
        self._is_ready = is_ready
        self._call = call

    def open(self, exchange: Exchange) -> Consumer:
        return _HealthWatch(exchange, self._is_ready, self._call)


class _HealthWatch:
    """Sends the status, and again when it changes (looked at once a second). A service that is not there is no error
    here, by the health protocol: it may come."""

    def __init__(self, stream: Any, is_ready: Callable[[], bool], call: CallHead) -> None:
        self._stream = stream
        self._is_ready = is_ready
        self._encoding = call.encoding
        self._reader = MessageReader(_MAX_MESSAGE, stream)
        self._loop = stream.connection.loop
        self._last = -1
        self._is_known = True
        stream.owner = self
        self._timer: Any = None
        stream.send_headers(RESPONSE_HEADERS, False)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            return
        try:
            self._reader.feed(data)
            message = self._reader.take()
            if message is not None:
                request = parse(HealthCheckRequest, bytes(unpack(*message, self._encoding, _MAX_MESSAGE)))
                self._is_known = request.service in HEALTH_SERVICES
                self._reader.give_back(len(message[1]))
                self._tell()
        except IsochroneError as error:
            self._stream.end_with_trailers(error_block(error.grpc_status, error.message, trailers_only=False))

    def ended(self) -> None:
        pass

    def abandoned(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def shed(self) -> None: ...

    def stopping(self) -> None:
        self.abandoned()
        self._send(_NOT_SERVING)
        self._stream.end_with_trailers(stopping_block())

    def _send(self, status: int) -> None:
        if status != self._last:
            self._last = status
            self._stream.send_data(frame_message(HealthCheckResponse(status=status).SerializeToString()))

    def _tell(self) -> None:
        ready = _SERVING if self._is_ready() else _NOT_SERVING
        self._send(ready if self._is_known else _SERVICE_UNKNOWN)
        self._timer = self._loop.call_later(1.0, self._tell)
