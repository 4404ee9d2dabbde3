"""``POST /refresh`` on a private socket: another process of this gateway changed what the workers serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.background_tasks import BackgroundTasks
from isochrone.protocol.rest.answers import respond_unexpected
from isochrone.wire.exchange import Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway

REFRESH = b"/refresh"


class RefreshApplication:
    """Answers when it is known here what every worker serves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks = BackgroundTasks()

    def route(self, head: Head) -> Route:
        return _RefreshRoute(self._gateway, self._tasks)


class _RefreshRoute(Route):
    def __init__(self, gateway: Gateway, tasks: BackgroundTasks) -> None:
        self._gateway = gateway
        self._tasks = tasks

    def handle(self, exchange: Exchange) -> None:
        self._tasks.start(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._gateway.read_indexes(self._gateway.monitoring.index_timeout)
        except Exception as error:
            respond_unexpected(exchange, error)
        else:
            exchange.respond(200, (), [])
