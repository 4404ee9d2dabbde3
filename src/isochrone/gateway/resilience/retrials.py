"""Suspects that wait to be sent once more, and where one of them is under way. Pure.

At most one suspect at a time is on an endpoint, so that the process it costs is counted against it and no other; and at
most one of identical ones is under way at all, since its answer speaks for the rest. ``suspects`` knows what each is
suspected of; the caller's ``place`` chooses the endpoint and sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from enum import Enum
from typing import Generic, TypeVar

from isochrone.gateway.resilience.suspects import Key

R = TypeVar("R", bound=Hashable)


class Placed(Enum):
    """What came of placing a request, beside the address it was sent to."""

    #: Every endpoint it may go to has a suspect: it waits on.
    WAITS = "waits"
    #: It has been answered otherwise, and is of no concern here any more.
    ENDED = "ended"


class Retrials(Generic[R]):
    """The suspects of one gateway, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[R, Key] = {}
        #: By address: the suspects there.
        self._there: dict[str, set[R]] = {}
        #: Under way: its key, and where it is.
        self._under_way: dict[R, tuple[Key, set[str]]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: R, key: Key) -> None:
        """It waits to be sent."""
        self._waiting[request] = key

    def mark(self, request: R, key: Key, address: str) -> None:
        """It is on an endpoint: sent by ``place``, or there since before it was suspected."""
        self._there.setdefault(address, set()).add(request)
        self._under_way.setdefault(request, (key, set()))[1].add(address)

    def over(self, request: R) -> None:
        """It neither waits nor is under way any more."""
        self._waiting.pop(request, None)
        _, addresses = self._under_way.pop(request, (None, set()))
        for address in addresses:
            self._there[address].discard(request)
            if not self._there[address]:
                del self._there[address]

    def take(self, key: Key) -> list[R]:
        """All that wait and are identical to one whose case is decided; they wait no more."""
        found = [request for request, own in self._waiting.items() if own == key]
        for request in found:
            del self._waiting[request]
        return found

    def pump(self, place: Callable[[R, Collection[str]], str | Placed]) -> None:
        """Sends all that can be sent. ``place`` is given a request and the endpoints it must not go to."""
        busy = {key for key, _ in self._under_way.values()}
        stuck: set[tuple[str, str]] = set()
        for request, key in list(self._waiting.items()):
            # What finds every endpoint occupied speaks for the rest of its model: hundreds may wait.
            if request not in self._waiting or key in busy or key[:2] in stuck:
                continue
            placed = place(request, self._there.keys())
            if placed is Placed.WAITS:
                stuck.add(key[:2])
                continue
            self._waiting.pop(request, None)
            if isinstance(placed, str):
                busy.add(key)
                self.mark(request, key, placed)
