"""Pages beside the metrics: ``GET /v1/flights/ID``, what this process remembers of one request, and
``GET /v1/flights``, the latest deadline misses. Never a payload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import unquote_to_bytes

import msgspec

from isochrone.errors import MethodNotAllowed, Unavailable
from isochrone.observe.flights.messages import FlightList, FlightPage, FlightPages, FlightSummary
from isochrone.protocol.rest.answers import JSON, ErrorRoute, respond_unexpected
from isochrone.wire.exchange import Application, Exchange, Head, Route

FLIGHTS = b"/v1/flights"
#: Lines of the list.
_MOST_LISTED = 100


class FlightRecorder(Protocol):
    """The recorder of a worker or a gateway."""

    @property
    def role(self) -> str: ...

    def page(self, request_id: str) -> FlightPage: ...

    def summaries(self, most: int) -> tuple[FlightSummary, ...]: ...


def asked_id(head: Head) -> str | None:
    """The id that a path asks for; "": the list. None: the path is somebody else's."""
    path = head.target.partition(b"?")[0]
    if path.rstrip(b"/") == FLIGHTS:
        return ""
    if not path.startswith(FLIGHTS + b"/"):
        return None
    return unquote_to_bytes(path[len(FLIGHTS) + 1 :]).decode("utf-8", "replace")


class WithFlights:
    """An application, and the pages before it. ``recorder``: None if nothing is recorded."""

    def __init__(self, recorder: FlightRecorder | None, otherwise: Application) -> None:
        self._recorder = recorder
        self._otherwise = otherwise

    def route(self, head: Head) -> Route:
        request_id = asked_id(head)
        if request_id is None:
            return self._otherwise.route(head)
        if head.method not in (b"GET", b"HEAD"):
            return ErrorRoute(MethodNotAllowed(f"{FLIGHTS.decode()}: expected GET"))
        recorder = self._recorder
        if recorder is None:
            return ErrorRoute(
                Unavailable("the flight recorder is off; start the process without --flight-recorder off")
            )
        if not request_id:
            return _PageRoute(lambda: FlightList(recorder.role, recorder.summaries(_MOST_LISTED)))
        return _PageRoute(lambda: FlightPages((recorder.page(request_id),)))


class _PageRoute(Route):
    def __init__(self, make: Callable[[], FlightPages | FlightList]) -> None:
        self._make = make

    def handle(self, exchange: Exchange) -> None:
        try:
            body = msgspec.json.encode(self._make())
        except Exception as error:
            respond_unexpected(exchange, error)
        else:
            exchange.respond(200, JSON, [body])
