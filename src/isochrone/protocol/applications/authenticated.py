"""Access control in front of an application: every request needs a grant that covers it.

A head carries its grant, since its credential is one of its headers: the work for a repeated head is one lookup.
Checked here is what the head tells, and the model that a control message names. Models in messages of inference are
checked where they are read: by ``GuardedService`` in a worker, on arrival in a gateway.

A request that is refused here is counted for the audit log, once; one that waits for a key and then passes is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from isochrone.errors import IsochroneError
from isochrone.protocol.access.held_requests import HeldRequest, HeldStream
from isochrone.protocol.access.needs import Need, needed_by
from isochrone.protocol.applications.application import error_route
from isochrone.protocol.audited_calls import count_refusal
from isochrone.protocol.grpc.calls import GrpcErrorRoute, fail, message_of, parse
from isochrone.protocol.grpc.control import METHODS
from isochrone.protocol.openai.answers import OpenAIErrorRoute
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.secure.access.internal import ON_BEHALF
from isochrone.secure.access.permissions import INFERENCE, METADATA, OF_MODELS
from isochrone.wire.exchange import Application, Consumer, Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.secure.access.grants import Grant
    from isochrone.secure.access.keeper import AccessKeeper
    from isochrone.secure.audit.audit import Audit

_ERRORS = (ErrorRoute, GrpcErrorRoute, OpenAIErrorRoute)

Refuse = Callable[[Exchange, Need, IsochroneError], None]


class Authenticated:
    """An application behind the access rules of one server."""

    def __init__(
        self,
        application: Application,
        keeper: AccessKeeper,
        max_body_bytes: int,
        need: Callable[[Head], Need] = needed_by,
        *,
        takes_attestations: bool = False,
        audit: Audit | None = None,
    ) -> None:
        """``takes_attestations``: gateways of the fleet say who their callers are; otherwise the header is ignored.
        ``audit`` counts what is refused; None: nothing does."""
        self._application = application
        self._keeper = keeper
        self._max_body_bytes = max_body_bytes
        self._need = need
        self._takes_attestations = takes_attestations
        self._refuse = partial(_refuse, audit)

    def route(self, head: Head) -> Route:
        attestation = (head.get(ON_BEHALF) or b"") if self._takes_attestations else b""
        grant = head.grant = self._keeper.grant(head.get(b"authorization") or b"", head.peer, attestation)
        route = self._application.route(head)
        if isinstance(route, _ERRORS) and not grant.refusal:
            return route
        need = self._need(head)
        if route.streaming:
            return _CheckedStream(route, grant, need, self._refuse)
        is_grpc = (head.get(b"content-type") or b"").startswith(b"application/grpc")
        if is_grpc and need.permission != INFERENCE:
            return _CheckedCall(route, grant, need, self._refuse, head, self._max_body_bytes)
        return _Checked(route, grant, need, self._refuse)


class _Checked(Route):
    """A request whose head says what it needs."""

    def __init__(self, route: Route, grant: Grant, need: Need, refuse: Refuse) -> None:
        self._route = route
        self._grant = grant
        self._need = need
        self._refuse = refuse

    def handle(self, exchange: Exchange) -> None:
        try:
            self._check(exchange)
        except IsochroneError as error:
            held = self._grant.held
            if held is None or not HeldRequest(exchange, self).waits(held):
                self._refuse(exchange, self._need, error)
        else:
            self._route.handle(exchange)

    def _check(self, exchange: Exchange) -> None:
        permission, model = self._need
        if permission == INFERENCE or (permission == METADATA and not model):
            # Of which model is checked where that is read; of the server and the list of models there is one.
            self._grant.require_for_any(permission)
        else:
            self._grant.require(permission, model)


class _CheckedCall(_Checked):
    """A control call of gRPC: its message names the model."""

    def __init__(self, route: Route, grant: Grant, need: Need, refuse: Refuse, head: Head, limit: int) -> None:
        super().__init__(route, grant, need, refuse)
        self._limit = limit
        self._encoding = head.get(b"grpc-encoding") or b"identity"
        named = need.permission in OF_MODELS and head.target in METHODS
        self._kind: Any = METHODS[head.target][0] if named else None

    def _check(self, exchange: Exchange) -> None:
        permission = self._need.permission
        self._grant.require_for_any(permission)
        if self._kind is None:
            if permission != METADATA:
                self._grant.require(permission)
            return
        body, start = message_of(exchange.body, self._encoding, self._limit)
        message = parse(self._kind, bytes(memoryview(body)[start:]))
        model = getattr(message, "model_name", "") or getattr(message, "name", "")
        if model or permission != METADATA:
            self._grant.require(permission, model)


class _CheckedStream(Route):
    """A call whose messages come one by one: refused when it is opened. Its messages are checked as they are read."""

    streaming = True
    #: Whether a call may wait until it is decided what its token proves.
    may_wait: ClassVar[bool] = True

    def __init__(self, route: Route, grant: Grant, need: Need, refuse: Refuse) -> None:
        self._route = route
        self._grant = grant
        self._need = need
        self._refuse = refuse

    def open(self, exchange: Exchange) -> Consumer:
        try:
            self._grant.require_for_any(self._need.permission)
        except IsochroneError as error:
            held = self._grant.held
            if held is not None and self.may_wait:
                at_once = _CheckedWithoutWaiting(self._route, self._grant, self._need, self._refuse)
                stream = HeldStream(exchange, self, at_once)
                if stream.waits(held):
                    return stream
            self._refuse(exchange, self._need, error)
            return _Refused()
        return self._route.open(exchange)


class _CheckedWithoutWaiting(_CheckedStream):
    """The same call, whose caller has sent too much while it waited."""

    may_wait = False


class _Refused:
    """Takes what else a caller sends who has his answer."""

    def data_received(self, data: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def shed(self) -> None:
        pass

    def stopping(self) -> None:
        pass


def _refuse(audit: Audit | None, exchange: Exchange, need: Need, error: IsochroneError) -> None:
    """The end of a request that may not pass."""
    if audit is not None:
        count_refusal(audit, exchange.head.grant, need.permission, exchange, error)
    exchange.owner = None
    if exchange.head.is_grpc:
        fail(exchange, error)
    else:
        error_route(exchange.head, error).handle(exchange)
