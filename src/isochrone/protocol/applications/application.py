"""The applications that listeners serve: the protocol (REST and gRPC on one port, and /v1), and the metrics page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from isochrone.errors import InvalidArgument, IsochroneError, MethodNotAllowed, NotFound, Restricted
from isochrone.observe.snapshot import ServerSnapshot
from isochrone.protocol.access import origins
from isochrone.protocol.access.restrictions import check_grpc, check_rest
from isochrone.protocol.access.rules import HeaderRules
from isochrone.protocol.audited_calls import count_refusal
from isochrone.protocol.grpc.calls import GrpcErrorRoute
from isochrone.protocol.grpc.router import GrpcRouter
from isochrone.protocol.openai.answers import OpenAIErrorRoute, is_openai
from isochrone.protocol.openai.router import OpenAIRouter
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.protocol.rest.router import RestRouter
from isochrone.protocol.services.forwarded_headers import WithHeaders, forwarded
from isochrone.protocol.services.guarded_service import GuardedService
from isochrone.wire.exchange import Application, Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.observe.metrics.exposition import Exposition
    from isochrone.protocol.services.service import InferenceService
    from isochrone.secure.access.grants import Grant
    from isochrone.secure.audit.audit import Audit


class ProtocolApplication:
    """REST and gRPC for one service, distinguished by the request's content type; and OpenAI's paths."""

    def __init__(
        self,
        service: InferenceService,
        max_body_bytes: int,
        rules: HeaderRules | None = None,
        audit: Audit | None = None,
    ) -> None:
        """``audit`` records control calls that change the server, and requests that grants do not cover; None: nothing
        does."""
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._audit = audit
        self._rest = RestRouter(service, max_body_bytes, audit)
        self._openai = OpenAIRouter(service, max_body_bytes)
        self._grpc = GrpcRouter(service, max_body_bytes, audit)
        self._rules = None if rules is None or rules.is_empty else rules
        #: The same for requests with a grant, which share what they have decoded with no other grant's.
        self._granted: WeakKeyDictionary[Grant, ProtocolApplication] = WeakKeyDictionary()

    def route(self, head: Head) -> Route:
        grant = head.grant
        return self._find(head) if grant is None else self._of_grant(grant)._find(head)

    def _of_grant(self, grant: Grant) -> ProtocolApplication:
        found = self._granted.get(grant)
        if found is None:
            refused = None if self._audit is None else partial(count_refusal, self._audit)
            service = cast("InferenceService", GuardedService(self._service, grant, refused))
            found = self._granted[grant] = ProtocolApplication(service, self._max_body_bytes, self._rules, self._audit)
        return found

    def _find(self, head: Head) -> Route:
        if (head.get(b"content-type") or b"").startswith(b"application/grpc"):
            if not head.is_http2:
                return ErrorRoute(InvalidArgument("gRPC needs HTTP/2, this request came over HTTP/1.1"))
            return self._grpc.route(head) if self._rules is None else self._grpc_by_rules(head, self._rules)
        if self._rules is not None:
            return self._rest_by_rules(head, self._rules)
        return self._openai.route(head) if is_openai(head) else self._rest.route(head)

    def _rest_by_rules(self, head: Head, rules: HeaderRules) -> Route:
        try:
            check_rest(rules.http_required, head)
        except Restricted as error:
            return error_route(head, error)
        if rules.http_forwarded is not None and (parameters := forwarded(rules.http_forwarded, head)):
            service = cast("InferenceService", WithHeaders(self._service, parameters))
            if is_openai(head):
                return OpenAIRouter(service, self._max_body_bytes).route(head)
            return RestRouter(service, self._max_body_bytes, self._audit).route(head)
        return self._openai.route(head) if is_openai(head) else self._rest.route(head)

    def _grpc_by_rules(self, head: Head, rules: HeaderRules) -> Route:
        try:
            check_grpc(rules.grpc_required, head)
        except Restricted as error:
            return GrpcErrorRoute(error)
        if rules.grpc_forwarded is not None and (parameters := forwarded(rules.grpc_forwarded, head)):
            service = cast("InferenceService", WithHeaders(self._service, parameters))
            return GrpcRouter(service, self._max_body_bytes, self._audit).route(head)
        return self._grpc.route(head)


class SameOrigin:
    """Rejects cross-origin requests of browsers; ``allowed``: origins that are served all the same.

    Decided when a head is routed, so a repeated head pays nothing.
    """

    def __init__(self, application: Application, allowed: Collection[str] = ()) -> None:
        self._application = application
        self._allowed = frozenset(allowed)

    def route(self, head: Head) -> Route:
        origin = head.get(b"origin")
        if origin is None or origins.is_allowed(origin, head.get(b"host") or head.authority, self._allowed):
            return self._application.route(head)
        error = origins.refused(origin)
        if head.is_http2 and (head.get(b"content-type") or b"").startswith(b"application/grpc"):
            return GrpcErrorRoute(error)
        return error_route(head, error)


def error_route(head: Head, error: IsochroneError) -> Route:
    """Answers with an error, in the form of the protocol that a head of HTTP belongs to."""
    return OpenAIErrorRoute(error) if is_openai(head) else ErrorRoute(error)


class ByPath:
    """One application per path; ``otherwise`` serves all other paths."""

    def __init__(self, by_path: Mapping[bytes, Application], otherwise: Application) -> None:
        self._by_path = by_path
        self._otherwise = otherwise

    def route(self, head: Head) -> Route:
        return self._by_path.get(head.target.partition(b"?")[0], self._otherwise).route(head)


def error_unless_metrics(head: Head) -> Route | None:
    """The route of an error, unless the request is GET /metrics: a metrics port serves nothing else."""
    path = head.target.partition(b"?")[0]
    if path not in (b"/metrics", b"/metrics/"):
        return ErrorRoute(NotFound(f"no such path: {path.decode('latin-1')[:200]}; metrics are under /metrics"))
    if head.method not in (b"GET", b"HEAD"):
        return ErrorRoute(MethodNotAllowed("/metrics: expected GET"))
    return None


class MetricsApplication:
    """GET /metrics, for Prometheus."""

    def __init__(self, exposition: Exposition, take: Callable[[], ServerSnapshot]) -> None:
        self._exposition = exposition
        self._take = take

    def route(self, head: Head) -> Route:
        error = error_unless_metrics(head)
        if error is not None:
            return error
        return _MetricsRoute(self._exposition, self._take, (head.get(b"accept") or b"").decode("latin-1"))


class _MetricsRoute(Route):
    def __init__(self, exposition: Exposition, take: Callable[[], ServerSnapshot], accept: str) -> None:
        self._exposition = exposition
        self._take = take
        self._accept = accept

    def handle(self, exchange: Exchange) -> None:
        # The snapshot is taken on the loop; a thread renders it, which takes milliseconds for many models.
        snapshot = self._take()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, self._exposition.render, self._accept, snapshot)
        future.add_done_callback(lambda done: self._answer(exchange, done))

    @staticmethod
    def _answer(exchange: Exchange, done: asyncio.Future[tuple[bytes, str]]) -> None:
        body, content_type = done.result()
        exchange.respond(200, ((b"content-type", content_type.encode()),), [body])
