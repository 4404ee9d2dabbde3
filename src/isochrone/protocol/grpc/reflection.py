"""gRPC's standard reflection service (v1 and v1alpha): the server's services and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tritonclient.grpc import service_pb2

from isochrone.errors import GRPC_NOT_FOUND, IsochroneError, MalformedRequest, Unavailable
from isochrone.protocol.grpc.calls import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    error_block,
    frame_message,
    parse,
    stopping_block,
    unpack,
)
from isochrone.protocol.grpc.descriptors import REFLECTION_PACKAGES, message_class, pool
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.wire.exchange import Consumer, Exchange, Route

#: Bytes of one request message.
_MAX_MESSAGE = 64 * 1024
#: Bytes of answers that may wait on one stream.
_MAX_UNSENT = 1024 * 1024

REFLECTION_PATHS = tuple(
    f"/{package}.ServerReflection/ServerReflectionInfo".encode() for package in REFLECTION_PACKAGES
)
_MESSAGES = {
    path: (message_class(f"{package}.ServerReflectionRequest"), message_class(f"{package}.ServerReflectionResponse"))
    for path, package in zip(REFLECTION_PATHS, REFLECTION_PACKAGES, strict=True)
}
_SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    *(f"{package}.ServerReflection" for package in REFLECTION_PACKAGES),
)


class _MessageStream:
    """A bidirectional call that answers each message immediately."""

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
                    raise Unavailable(f"more than {_MAX_UNSENT} bytes of answers are unread: read them, then retry")
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
    """ServerReflectionInfo."""

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
        return look_up(pool)
    except KeyError:
        return look_up(service_pb2.DESCRIPTOR.pool)


def _add_files(response: Any, file: Any) -> None:
    """Add a file and all its imports, each once: clients need them to build the messages."""
    seen: dict[str, bytes] = {}

    def visit(current: Any) -> None:
        if current.name in seen:
            return
        seen[current.name] = current.serialized_pb
        for dependency in current.dependencies:
            visit(dependency)

    visit(file)
    response.file_descriptor_response.file_descriptor_proto.extend(seen.values())
