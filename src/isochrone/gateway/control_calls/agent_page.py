"""A page beside the metrics: ``GET /agents``, the latencies of agents as JSON, for displays."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from isochrone.errors import MethodNotAllowed
from isochrone.gateway.latencies.agent_report import AgentReport
from isochrone.protocol.rest.answers import JSON, ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Route

_AGENTS = b"/agents"


class AgentPage:
    """The page. ``report``: what it shows, read for each request."""

    def __init__(self, report: Callable[[], AgentReport]) -> None:
        self._report = report

    def route(self, head: Head) -> Route | None:
        """None: the path is somebody else's."""
        if head.target.partition(b"?")[0] != _AGENTS:
            return None
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed("/agents: expected GET"))
        return _AgentsRoute(self._report)


class _AgentsRoute(Route):
    def __init__(self, report: Callable[[], AgentReport]) -> None:
        self._report = report

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200, JSON, [msgspec.json.encode(self._report())])
