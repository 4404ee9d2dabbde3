"""Suspects that wait to be sent once more, and where one of them is under way. Pure.

A suspect shares an endpoint with as many others as all of them allow. By default that is none, so that the process it
costs is counted against it and no other. At most one of identical ones is under way at all, since its answer speaks for
the rest. The nearest deadline goes first, since suspects wait longer than other requests. ``suspects`` knows what each
is suspected of; the caller's ``place`` chooses the endpoint and sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from isochrone.clock import NEVER
from isochrone.gateway.resilience.suspects import Key

R = TypeVar("R", bound=Hashable)


class Placed(Enum):
    """What came of placing a request, beside the address it was sent to."""

    #: Every endpoint it may go to has a suspect: it waits on.
    WAITS = "waits"
    #: It has been answered otherwise, and is of no concern here any more.
    ENDED = "ended"


class _Waiting(NamedTuple):
    key: Key
    deadline: int
    #: Suspects that may be on its endpoint at once, itself included.
    at_once: int


class Retrials(Generic[R]):
    """The suspects of one gateway."""

    def __init__(self) -> None:
        #: In the order they came.
        self._waiting: dict[R, _Waiting] = {}
        #: By address: the suspects there, each with how many it allows at once.
        self._there: dict[str, dict[R, int]] = {}
        #: Under way: its key, and where it is.
        self._under_way: dict[R, tuple[Key, set[str]]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: R, key: Key, deadline: int = NEVER, at_once: int = 1) -> None:
        """It waits to be sent. ``at_once``: suspects that may be on its endpoint, itself included."""
        self._waiting[request] = _Waiting(key, deadline, at_once)

    def mark(self, request: R, key: Key, address: str, at_once: int = 1) -> None:
        """It is on an endpoint: sent by ``place``, or there since before it was suspected."""
        self._there.setdefault(address, {})[request] = at_once
        self._under_way.setdefault(request, (key, set()))[1].add(address)

    def over(self, request: R) -> None:
        """It neither waits nor is under way any more."""
        self._waiting.pop(request, None)
        _, addresses = self._under_way.pop(request, (None, set()))
        for address in addresses:
            self._there[address].pop(request, None)
            if not self._there[address]:
                del self._there[address]

    def take(self, key: Key) -> list[R]:
        """All that wait and are identical to one whose case is decided; they wait no more."""
        found = [request for request, own in self._waiting.items() if own.key == key]
        for request in found:
            del self._waiting[request]
        return found

    def pump(self, place: Callable[[R, Collection[str]], str | Placed]) -> None:
        """Sends all that can be sent. ``place`` is given a request and the endpoints it must not go to."""
        busy = {key for key, _ in self._under_way.values()}
        stuck: set[tuple[str, str, int]] = set()
        for request, (key, _, at_once) in sorted(self._waiting.items(), key=lambda each: each[1].deadline):
            # What finds every endpoint occupied speaks for the rest of its model: hundreds may wait.
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
        """Endpoints that take no suspect more that allows so many."""
        if at_once == 1:
            return self._there.keys()
        return {each for each, there in self._there.items() if len(there) >= min(at_once, *there.values())}
