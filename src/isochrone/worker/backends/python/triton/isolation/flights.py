"""The requests that are in the process of a model, and which of them have taken too long.

Decisions only: ``session`` sends what follows from them. The threads of the instance, of the link and of the event loop
use it: each step is one operation on a dict, or on a field that one thread writes.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from isochrone.worker.backends.python.triton.isolation.messages import RESPONSES_AHEAD, TAKEN_AT_ONCE

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.backends.interface import PostingOutlet, PostingOutletOf


class Flight:
    """One request in the process."""

    __slots__ = (
        "_acknowledged",
        "_making",
        "_outlet_of",
        "_taken",
        "has_returned",
        "is_gone",
        "is_stopped",
        "number",
        "outlet",
        "request",
        "sent",
        "since",
    )

    def __init__(
        self, number: int, request: InferRequest, outlet_of: PostingOutletOf, now: int, making: threading.Lock
    ) -> None:
        self.number = number
        self.request = request
        self._outlet_of = outlet_of
        self._making = making
        #: Where its responses go; made when it is needed, and only once.
        self.outlet: PostingOutlet | None = None
        #: Since when the model owes the next response.
        self.since = now
        #: ``execute`` has returned, and left the answer to a response sender.
        self.has_returned = False
        #: The process knows that the caller has gone.
        self.is_gone = False
        #: It took too long and was answered with an error.
        self.is_stopped = False
        #: Responses that came from the process (the link's thread counts); those that the caller has taken, and those
        #: of which the process knows that (the loop's thread counts).
        self.sent = 0
        self._taken = self._acknowledged = 0

    def made_outlet(self) -> PostingOutlet:
        with self._making:
            if self.outlet is None:
                self.outlet = self._outlet_of(self.request)
            return self.outlet

    def has_gone(self) -> bool:
        return self.request.cancelled or (self.outlet is not None and self.outlet.is_cancelled())

    def taken(self, now: int) -> int:
        """The caller has taken a response: how many to acknowledge to the process."""
        self.since = now
        self._taken += 1
        count = self._taken - self._acknowledged
        if count < TAKEN_AT_ONCE:
            return 0
        self._acknowledged = self._taken
        return count

    @property
    def waits_for_caller(self) -> bool:
        return self.sent - self._acknowledged >= RESPONSES_AHEAD


class Flights:
    """All requests in one process, by their numbers."""

    def __init__(self, *, decoupled: bool, limit_ns: int) -> None:
        """``limit_ns``: the time for each response of a sender; 0: none."""
        self._decoupled = decoupled
        self._limit_ns = limit_ns
        self._flights: dict[int, Flight] = {}
        self._making = threading.Lock()
        self._numbers = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._flights)

    def add(self, request: InferRequest, outlet_of: PostingOutletOf, now: int) -> Flight:
        flight = Flight(next(self._numbers), request, outlet_of, now, self._making)
        self._flights[flight.number] = flight
        return flight

    def get(self, number: int) -> Flight | None:
        return self._flights.get(number)

    def remove(self, flight: Flight) -> bool:
        """Whether it was still there: one thread alone ends a flight."""
        return self._flights.pop(flight.number, None) is not None

    def remove_all(self) -> list[Flight]:
        return [flight for flight in list(self._flights.values()) if self.remove(flight)]

    def returned(self, flight: Flight, now: int) -> None:
        """``execute`` has returned; a response sender answers the request."""
        flight.has_returned = True
        if not self._decoupled:
            flight.since = now

    def newly_gone(self) -> list[int]:
        """Requests whose callers have gone since the last call."""
        numbers = []
        for flight in list(self._flights.values()):
            if not flight.is_gone and flight.has_gone():
                flight.is_gone = True
                numbers.append(flight.number)
        return numbers

    def overdue(self, now: int) -> list[Flight]:
        """Requests whose next response takes too long. Of an ordinary model ``execute`` as a whole is limited, so only
        those count that it has left to a sender."""
        if not self._limit_ns:
            return []
        return [
            flight
            for flight in list(self._flights.values())
            if now - flight.since >= self._limit_ns
            and (not flight.waits_for_caller if self._decoupled else flight.has_returned and not flight.sent)
        ]
