"""The coordinator's flight records: those of every process, on the metrics port."""

from __future__ import annotations

import msgspec

from isochrone.background_tasks import BackgroundTasks
from isochrone.errors import IsochroneError, MethodNotAllowed, Unavailable
from isochrone.multiprocess.group.group import ProcessGroup
from isochrone.multiprocess.group.private_calls import call, gather
from isochrone.observe.flights.messages import FlightList, FlightPage, FlightPages, FlightSummary
from isochrone.protocol.applications.flight_page import FLIGHTS, asked_id
from isochrone.protocol.rest.answers import JSON, ErrorRoute, respond_error, respond_unexpected
from isochrone.wire.exchange import Application, Exchange, Head, Route

_SECONDS = 2.0


class GroupFlights:
    """An application, and the pages of flight records before it."""

    def __init__(self, group: ProcessGroup, otherwise: Application) -> None:
        self._group = group
        self._otherwise = otherwise
        self._tasks = BackgroundTasks()

    def route(self, head: Head) -> Route:
        request_id = asked_id(head)
        if request_id is None:
            return self._otherwise.route(head)
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed(f"{FLIGHTS.decode()}: expected GET"))
        return _FlightsRoute(self._group, self._tasks, head.target.decode("latin-1"), is_list=not request_id)


class _FlightsRoute(Route):
    def __init__(self, group: ProcessGroup, tasks: BackgroundTasks, target: str, *, is_list: bool) -> None:
        self._group, self._tasks, self._target, self._is_list = group, tasks, target, is_list

    def handle(self, exchange: Exchange) -> None:
        self._tasks.start(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            body = await self._collect()
        except IsochroneError as error:
            respond_error(exchange, error)
        except Exception as error:
            respond_unexpected(exchange, error)
        else:
            exchange.respond(200, JSON, [body])

    async def _collect(self) -> bytes:
        board = self._group.board
        answers = await gather(
            {
                number: call(self._group.socket(number), "GET", self._target, seconds=_SECONDS)
                for number in board.numbers
                if board.pid(number)
            }
        )
        # A process that does not answer is being restarted: what it remembered is gone.
        bodies = [each.body for each in answers.values() if not isinstance(each, IsochroneError) and each.status == 200]
        if not bodies:
            raise Unavailable("no process has flight records; is --flight-recorder off?")
        if self._is_list:
            lists = [msgspec.json.decode(body, type=FlightList) for body in bodies]
            merged: list[FlightSummary] = sorted(
                (each for one in lists for each in one.flights), key=lambda each: -each.time
            )
            return msgspec.json.encode(FlightList(lists[0].role, tuple(merged)))
        pages: list[FlightPage] = [
            page for body in bodies for page in msgspec.json.decode(body, type=FlightPages).pages
        ]
        return msgspec.json.encode(FlightPages(tuple(pages)))
