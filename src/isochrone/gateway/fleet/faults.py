"""What keeps a fleet from answering: committed models that nothing serves, and workers that get no requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isochrone.errors import NotFound
from isochrone.gateway.fleet.fleet import Fleet
from isochrone.gateway.fleet.mismatches import Mismatches
from isochrone.gateway.housekeeping import Steps

#: Models looked at in one turn of the loop: some 4 µs each; one that is rebuilt first takes as long as many others.
_LOOKED_AT_PER_TURN, _REBUILT = 64, 32
#: The index of a worker of which none is known.
_NOTHING: Mapping[str, Mapping[str, str]] = {}


class Faults:
    """Of one fleet. Each search is a generator: where there are thousands of models it takes many turns of the loop."""

    def __init__(self, fleet: Fleet, clock: Callable[[], int]) -> None:
        self._fleet = fleet
        self._clock = clock
        self._mismatches = Mismatches()

    def find_unserved(self) -> Steps[dict[str, str]]:
        """Committed models of which a request would not be answered now, and why."""
        found: dict[str, str] = {}
        looked = 0
        for name in list(self._fleet.committed):
            try:
                served = self._fleet.model(name)
            except NotFound:
                continue  # more models than a gateway serves, or not committed any more
            looked += _REBUILT if served.outdated else 1
            reason = served.unserved(served.current)
            if reason:
                found[name] = reason
            if looked >= _LOOKED_AT_PER_TURN:
                looked = 0
                yield
        return found

    def find_worker_faults(self) -> Steps[dict[str, str]]:
        """By address: workers that get no requests now, or none for some models, and why."""
        now = self._clock()
        found: dict[str, str] = {}
        for address, member in list(self._fleet.members.items()):
            if member.fault:
                found[address] = member.fault
                continue
            if member.endpoint.ejected_until > now:
                found[address] = "left out as an outlier: it fails or is slow beside the others"
                continue
            serves = member.serves or _NOTHING
            if not self._mismatches.knows(serves, self._fleet.committed):
                # Every model of an index is compared: some 0.5 ms where there are a thousand.
                yield
            differs = self._mismatches.of(serves, self._fleet.committed)
            if differs:
                found[address] = differs
        return found
