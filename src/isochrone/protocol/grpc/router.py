"""gRPC routing: which path means which method.

``route`` is called once per distinct header block; the route it returns holds everything the block alone decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isochrone.errors import IsochroneError, Unsupported
from isochrone.protocol.access import control_token
from isochrone.protocol.access.changes import grpc_action, grpc_change
from isochrone.protocol.audited_calls import actor_of, audited
from isochrone.protocol.compression.inflating import inflating_messages
from isochrone.protocol.grpc.calls import CallHead, GrpcErrorRoute, fail
from isochrone.protocol.grpc.control import CHANGES, METHODS, SERVICE, Recorded, UnaryRoute, reads_only
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.health import HealthWatchRoute
from isochrone.protocol.grpc.infer import InferRoute
from isochrone.protocol.grpc.reflection import REFLECTION_PATHS, ReflectionRoute
from isochrone.protocol.grpc.stream import StreamInferRoute
from isochrone.protocol.headers.version_pins import Pins
from isochrone.wire.exchange import Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService
    from isochrone.secure.audit.audit import Audit

#: path → route of a streaming method, from the service, max_body_bytes and the call's header block
STREAMING: dict[bytes, Callable[[InferenceService, int, CallHead], Route]] = {
    b"/grpc.health.v1.Health/Watch": lambda service, _, call: HealthWatchRoute(service.is_ready, call),
    **dict.fromkeys(REFLECTION_PATHS, lambda _, __, call: ReflectionRoute(call)),
}


class GrpcRouter:
    """Finds the route of a gRPC call."""

    def __init__(self, service: InferenceService, max_body_bytes: int, audit: Audit | None = None) -> None:
        """``audit`` records changes before they take effect; None: nothing does."""
        self._service = service
        self._audit = audit
        self._max_body_bytes = max_body_bytes
        self._decoder = InferDecoder(service)
        self._pins = Pins()

    def route(self, head: Head) -> Route:
        try:
            return self._find(head)
        except IsochroneError as error:
            return GrpcErrorRoute(error)

    def _find(self, head: Head) -> Route:
        call = CallHead(head, self._pins.of(head.authority))
        path = head.target
        service, limit = self._service, self._max_body_bytes
        if path == SERVICE + b"ModelInfer":
            return inflating_messages(InferRoute(service, limit, self._decoder, call), call.encoding, limit, fail)
        if path == SERVICE + b"ModelStreamInfer":
            return StreamInferRoute(service, limit, self._decoder, call)
        streaming = STREAMING.get(path)
        if streaming is not None:
            return streaming(service, limit, call)
        found = METHODS.get(path)
        if found is None:
            raise Unsupported(f"unknown method {path.decode('latin-1')[:200]}")
        request, method = found
        changes = CHANGES.get(path)
        if changes is not None and not control_token.may_change(head, service.control_token):
            method = reads_only(method, changes)
        route = UnaryRoute(method, request, service, limit, call)
        if self._audit is not None and (action := grpc_action(path)):
            is_refused = changes is not None and not control_token.may_change(head, service.control_token)
            record = refused if is_refused else recorded
            route.recorded = record(self._audit, head, action, service.control_token)
        return inflating_messages(route, call.encoding, limit, fail)


def refused(audit: Audit, head: Head, action: str, _: str) -> Recorded:
    """Records that the caller may not change the server."""

    def run(exchange: Exchange, message: Any, work: Callable[[], Any]) -> Any:
        found = grpc_change(action, message)
        if found is not None:
            error = control_token.refused()
            audit.refused(actor_of(head, exchange), action, found[0].subject, {"error": error.code})
        return work()

    return run


def recorded(audit: Audit, head: Head, action: str, token: str = "") -> Recorded:
    """Runs calls between their records. ``token``: the server's control token."""

    def run(exchange: Exchange, message: Any, work: Callable[[], Any]) -> Any:
        found = grpc_change(action, message)
        if found is None:
            return work()
        change, details = found
        return audited(audit, actor_of(head, exchange, token), change, details, work)

    return run
