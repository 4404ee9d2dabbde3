"""The queue of suspects that are to be sent once more, and the endpoints where suspects are in flight. Pure.

A suspect shares an endpoint with at most as many others as each of them allows. By default that is none, so that a lost
process counts against one suspect alone. Of identical requests at most one is in flight, since its result decides for
the others. The nearest deadline is sent first. ``suspects`` keeps the cases; the caller's ``place`` chooses the
endpoint and sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from isochrone.clock import NEVER
from isochrone.gateway.resilience.suspects import Key

R = TypeVar("R", bound=Hashable)


class Placed(Enum):
    """The result of placing a request that was not sent."""

    #: Every endpoint that may take it has a suspect: it stays in the queue.
    WAITS = "waits"
    #: It has been answered otherwise, and leaves the queue.
    ENDED = "ended"


class _Waiting(NamedTuple):
    key: Key
    deadline: int
    #: Suspects that may be on its endpoint at once, including itself.
    at_once: int


class Retrials(Generic[R]):
    """The suspects of one gateway."""

    def __init__(self) -> None:
        #: In the order of arrival.
        self._waiting: dict[R, _Waiting] = {}
        #: By address: the suspects in flight there, each with the number it allows at once.
        self._by_address: dict[str, dict[R, int]] = {}
        #: In flight: the key, and the addresses.
        self._in_flight: dict[R, tuple[Key, set[str]]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: R, key: Key, deadline: int = NEVER, at_once: int = 1) -> None:
        """Queue a suspect. ``at_once``: suspects that may be on its endpoint, including itself."""
        self._waiting[request] = _Waiting(key, deadline, at_once)

    def mark(self, request: R, key: Key, address: str, at_once: int = 1) -> None:
        """Record that a suspect is in flight on an endpoint, also one that was sent before it became a suspect."""
        self._by_address.setdefault(address, {})[request] = at_once
        self._in_flight.setdefault(request, (key, set()))[1].add(address)

    def over(self, request: R) -> None:
        """Remove a suspect that is neither queued nor in flight any more."""
        self._waiting.pop(request, None)
        _, addresses = self._in_flight.pop(request, (None, set()))
        for address in addresses:
            self._by_address[address].pop(request, None)
            if not self._by_address[address]:
                del self._by_address[address]

    def take(self, key: Key) -> list[R]:
        """Remove and return all queued suspects with this key, whose case is decided."""
        found = [request for request, own in self._waiting.items() if own.key == key]
        for request in found:
            del self._waiting[request]
        return found

    def pump(self, place: Callable[[R, Collection[str]], str | Placed]) -> None:
        """Send every suspect that may be sent. ``place`` gets a request and the addresses that it must not go to."""
        busy = {key for key, _ in self._in_flight.values()}
        stuck: set[tuple[str, str, int]] = set()
        for request, (key, _, at_once) in sorted(self._waiting.items(), key=lambda each: each[1].deadline):
            # If one finds every endpoint occupied, so do the others of its model: hundreds may be queued.
            alike = (key.model, key.version, at_once)
            if request not in self._waiting or key in busy or alike in stuck:
                continue
            placed = place(request, self._occupied(at_once))
            if placed is Placed.WAITS:
                stuck.add(alike)
                continue
            self._waiting.pop(request, None)
            if isinstance(placed, str):
                busy.add(key)
                self.mark(request, key, placed, at_once)

    def _occupied(self, at_once: int) -> Collection[str]:
        """The addresses that must not get another suspect which allows ``at_once``."""
        if at_once == 1:
            return self._by_address.keys()
        return {address for address, there in self._by_address.items() if len(there) >= min(at_once, *there.values())}
