"""How far each worker is from the gateways, from one reading of the fleet to the next. Pure.

Gateways measure; ``placement.distances`` estimates. A figure changes only if the way has changed by more than noise, so
that plans may be made with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.placement.distances import Distances
from isochrone.control.scaling.reading.fleet_counters import FleetReading


class WorkerDistances:
    """Of one fleet. One object per leader: the next one starts with its first reading."""

    def __init__(self) -> None:
        self._distances = Distances()

    def take(self, reading: FleetReading, now: float) -> Mapping[str, float]:
        """By worker: seconds to it and back. ``now``: of the monotonic clock.

        A gateway that did not answer keeps its figures until they are stale. A worker that no gateway has measured
        lately is absent, and one that came back elsewhere under its name counts as moved within a minute.
        """
        for gateway, counts in reading.gateways.items():
            if counts is not None:
                instant = reading.instant_of(counts)
                for worker, seconds in counts.round_trips.items():
                    self._distances.add(gateway, worker, instant, seconds)
        self._distances.forget_others(reading.gateways.keys(), now)
        return self._distances.by_worker(now)
