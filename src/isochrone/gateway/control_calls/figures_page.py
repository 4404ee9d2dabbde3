"""A page beside the metrics, for controllers: ``GET /figures``, what this process has counted, as compact JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import MethodNotAllowed
from isochrone.gateway.figures.page import FIGURES_PATH, encode
from isochrone.gateway.figures.reading import FiguresReader
from isochrone.protocol.rest.answers import JSON, ErrorRoute, respond_unexpected
from isochrone.wire.exchange import Exchange, Head, Route

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway

_PATH = FIGURES_PATH.encode()


class FiguresPages:
    """The page of one gateway process."""

    def __init__(self, gateway: Gateway) -> None:
        self._housekeeping = gateway.housekeeping
        self._reader = FiguresReader(gateway)
        self._tasks = BackgroundTasks()

    def route(self, head: Head) -> Route | None:
        """None: the path is somebody else's."""
        if head.target.partition(b"?")[0] != _PATH:
            return None
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed(f"{FIGURES_PATH}: expected GET"))
        return _FiguresRoute(self)

    def answer(self, exchange: Exchange) -> None:
        self._tasks.start(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            content = encode(await self._housekeeping.do(self._reader.read()))
        except Exception as error:
            respond_unexpected(exchange, error)
        else:
            exchange.respond(200, JSON, [content])


class _FiguresRoute(Route):
    def __init__(self, pages: FiguresPages) -> None:
        self._pages = pages

    def handle(self, exchange: Exchange) -> None:
        self._pages.answer(exchange)
