"""What a picker serves: the calls of Envoy, and gRPC's health service."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from isochrone.errors import IsochroneError, NotFound, Unsupported
from isochrone.gateway.control_calls.routes import LocalGrpcRoute
from isochrone.gateway.picker.picker import Picker
from isochrone.gateway.picker.processing import Processing
from isochrone.protocol.grpc.calls import CallHead, GrpcErrorRoute, parse
from isochrone.protocol.grpc.health import (
    NOT_SERVING,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListResponse,
    HealthWatchRoute,
)
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.wire.exchange import Consumer, Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.wire.http2.server_stream import ServerStream

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_PROCESS = f"/{SERVICE}/Process".encode()
_HEALTH = b"/grpc.health.v1.Health/"
#: Alive while it answers at all.
_LIVENESS = "liveness"
#: Services with a health status; "": the picker. The last one is what the reference picker is asked for.
HEALTH_SERVICES = ("", _LIVENESS, "readiness", SERVICE, "inference-extension")


class HealthApplication:
    """gRPC's health service of a picker."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    def route(self, head: Head) -> Route:
        if not (head.get(b"content-type") or b"").startswith(b"application/grpc") or not head.is_http2:
            return ErrorRoute(NotFound("a picker speaks gRPC with Envoy; requests for models go to Envoy"))
        try:
            return self._grpc(head)
        except IsochroneError as error:
            return GrpcErrorRoute(error)

    def _grpc(self, head: Head) -> Route:
        gateway = self._picker.gateway
        method = head.target.removeprefix(_HEALTH)
        if method == b"Check":
            return LocalGrpcRoute(self._check)
        if method == b"List":
            return LocalGrpcRoute(self._list)
        if method == b"Watch":
            return HealthWatchRoute(lambda: gateway.is_ready, CallHead(head), HEALTH_SERVICES, _LIVENESS)
        raise Unsupported(f"unknown gRPC method {head.target.decode('latin-1')[:200]}")

    def _check(self, message: bytes) -> object:
        service = parse(HealthCheckRequest, message).service
        if service not in HEALTH_SERVICES:
            raise NotFound(f"unknown service '{service[:200]}'")
        return HealthCheckResponse(status=self._status(service))

    def _list(self, message: bytes) -> object:
        response = HealthListResponse()
        for name in HEALTH_SERVICES:
            response.statuses[name].status = self._status(name)
        return response

    def _status(self, service: str) -> int:
        return SERVING if service == _LIVENESS or self._picker.gateway.is_ready else NOT_SERVING


class PickerApplication(HealthApplication):
    """The same, and the calls of Envoy."""

    def _grpc(self, head: Head) -> Route:
        if head.target == _PROCESS:
            return ProcessRoute(self._picker, head)
        return super()._grpc(head)


class ProcessRoute(Route):
    """Calls with one head."""

    streaming = True

    def __init__(self, picker: Picker, head: Head) -> None:
        self._picker = picker
        self._encoding = head.get(b"grpc-encoding") or b"identity"

    def open(self, exchange: Exchange) -> Consumer:
        return Processing(self._picker, cast("ServerStream", exchange), self._encoding)
