"""gRPC's standard health service (grpc.health.v1): Check, List and Watch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from isochrone.errors import IsochroneError
from isochrone.protocol.grpc.calls import (
    RESPONSE_HEADERS,
    CallHead,
    error_block,
    frame_message,
    parse,
    stopping_block,
    unpack,
)
from isochrone.protocol.grpc.descriptors import message_class
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.wire.exchange import Consumer, Exchange, Route

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
#: Services with a health status; "": the server.
HEALTH_SERVICES = ("", "inference.GRPCInferenceService")
#: Bytes of one request message.
_MAX_MESSAGE = 64 * 1024

HealthCheckRequest = message_class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = message_class("grpc.health.v1.HealthCheckResponse")
HealthListRequest = message_class("grpc.health.v1.HealthListRequest")
HealthListResponse = message_class("grpc.health.v1.HealthListResponse")


class HealthWatchRoute(Route):
    """Health.Watch: sends the status now and after each change, until the client ends the call."""

    streaming = True

    def __init__(
        self, is_ready: Callable[[], bool], call: CallHead, services: Collection[str] = HEALTH_SERVICES, live: str = ""
    ) -> None:
        """``services``: those with a status. ``live``: the one that is always served; "": none is."""
        self._is_ready = is_ready
        self._call = call
        self._services = services
        self._live = live

    def open(self, exchange: Exchange) -> Consumer:
        return _HealthWatch(exchange, self._is_ready, self._call, self._services, self._live)


class _HealthWatch:
    """One Watch call; checks the status once a second. By the health protocol, an unknown service is not an error."""

    def __init__(
        self, stream: Any, is_ready: Callable[[], bool], call: CallHead, services: Collection[str], live: str
    ) -> None:
        self._stream = stream
        self._is_ready = is_ready
        self._services = services
        self._live = live
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
                self._is_known = request.service in self._services
                if self._live and request.service == self._live:
                    self._is_ready = _always
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
        self._send(NOT_SERVING)
        self._stream.end_with_trailers(stopping_block())

    def _send(self, status: int) -> None:
        if status != self._last:
            self._last = status
            self._stream.send_data(frame_message(HealthCheckResponse(status=status).SerializeToString()))

    def _tell(self) -> None:
        ready = SERVING if self._is_ready() else NOT_SERVING
        self._send(ready if self._is_known else SERVICE_UNKNOWN)
        self._timer = self._loop.call_later(1.0, self._tell)


def _always() -> bool:
    return True
