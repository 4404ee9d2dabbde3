"""The choice among the endpoints of a remote model. Pure.

Of those that answer, the one with the fewest requests in flight. One that cannot be reached is left out for a time that
doubles with each further failure; if all are left out, the one whose time ends first is tried, since an attempt may
succeed and a rejection cannot.
"""

from __future__ import annotations

from collections.abc import Collection

from isochrone.clock import MILLISECOND, SECOND

_FIRST_PAUSE = 250 * MILLISECOND
_LONGEST_PAUSE = 8 * SECOND


class _Endpoint:
    __slots__ = ("failures", "in_flight", "left_out_until")

    def __init__(self) -> None:
        self.in_flight = 0
        self.failures = 0
        self.left_out_until = 0


class EndpointChoice:
    """State of the endpoints, by their positions."""

    def __init__(self, count: int) -> None:
        self._endpoints = [_Endpoint() for _ in range(count)]
        #: Where the next choice begins to look, so that equal endpoints take turns.
        self._next = 0

    def choose(self, now: int, tried: Collection[int] = ()) -> int | None:
        """The endpoint of the next attempt, which must be followed by ``ended``; None: all have been tried."""
        count = len(self._endpoints)
        order = [(self._next + step) % count for step in range(count)]
        left = [position for position in order if position not in tried]
        if not left:
            return None
        usable = [position for position in left if self._endpoints[position].left_out_until <= now]
        if usable:
            chosen = min(usable, key=lambda position: self._endpoints[position].in_flight)
        else:
            chosen = min(left, key=lambda position: self._endpoints[position].left_out_until)
        self._next = (chosen + 1) % count
        self._endpoints[chosen].in_flight += 1
        return chosen

    def ended(self, position: int) -> None:
        """The attempt is over, whatever came of it."""
        self._endpoints[position].in_flight -= 1

    def answered(self, position: int) -> None:
        """The endpoint can be reached: also an error is an answer."""
        endpoint = self._endpoints[position]
        endpoint.failures = endpoint.left_out_until = 0

    def failed(self, position: int, now: int) -> None:
        """The endpoint could not be reached, or its connection broke."""
        endpoint = self._endpoints[position]
        if endpoint.left_out_until > now:
            return  # one of several requests that met the same failure
        endpoint.left_out_until = now + min(_LONGEST_PAUSE, _FIRST_PAUSE << min(endpoint.failures, 10))
        endpoint.failures += 1

    def in_flight(self, position: int) -> int:
        return self._endpoints[position].in_flight
