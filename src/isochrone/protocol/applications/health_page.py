"""A port for probes alone: the health of a process, and nothing else of it.

The kubelet shows no certificate and no token. So a worker or gateway that asks for them can have one more port, without
TLS, whose answers have a status and no body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isochrone.errors import MethodNotAllowed, NotFound
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Route

LIVE, READY, COMMITTED = b"/v2/health/live", b"/v2/health/ready", b"/v2/health/committed"


class HealthPage:
    """GET of one path per check: 200 or, as on the other ports, 400."""

    def __init__(self, checks: Mapping[bytes, Callable[[], bool]]) -> None:
        self._routes = {path: _HealthRoute(check) for path, check in checks.items()}

    def route(self, head: Head) -> Route:
        route = self._routes.get(head.target.partition(b"?")[0])
        if route is None:
            return ErrorRoute(NotFound("this port answers health checks alone"))
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed("health checks: expected GET"))
        return route


class _HealthRoute(Route):
    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200 if self._check() else 400, (), [])
