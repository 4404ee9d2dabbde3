"""How loaded a worker is, as a level from 0 to 4 that a tile has a color for. Pure.

What matters is whether a new request would still be in time: the expected wait counts as a share of the shortest
deadline of the worker's models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from isochrone.console.view.quantities import milliseconds
from isochrone.control.figures.frames import WorkerFigures

#: Level 0: no request. 1: requests, none waits. 2, 3, 4: a new request would wait up to a tenth of its deadline, up to
#: half of it, longer.
IDLE, BUSY, QUEUEING, LATE, OVERLOADED = range(5)
LEVELS: Final = ("idle", "busy", "queueing", "late", "overloaded")
_QUEUEING_SHARE, _LATE_SHARE = 0.1, 0.5
#: In place of a deadline where no model of the worker has one.
USUAL_DEADLINE_NS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker in one second."""

    level: int
    in_flight: int
    queued: int
    wait_ms: float
    round_trip_ms: float | None = None
    #: Why gateways send it nothing now: "ejected", "unhealthy"; "": they do.
    trouble: str = ""


def level_of(in_flight: int, queued: int, wait_ns: int, deadline_ns: int = 0) -> int:
    """``deadline_ns`` 0: none is set."""
    reference = deadline_ns or USUAL_DEADLINE_NS
    if wait_ns > reference * _LATE_SHARE:
        return OVERLOADED
    if wait_ns > reference * _QUEUEING_SHARE:
        return LATE
    if wait_ns > 0 and queued:
        return QUEUEING
    return BUSY if in_flight else IDLE


def load_of(figures: WorkerFigures, deadline_ns: int = 0) -> WorkerLoad:
    trip = figures.round_trip_s
    return WorkerLoad(
        level_of(figures.in_flight, figures.queued, figures.wait_ns, deadline_ns),
        figures.in_flight,
        figures.queued,
        milliseconds(figures.wait_ns),
        milliseconds(trip * 1e9) if trip is not None else None,
        "ejected" if figures.is_ejected else "" if figures.is_healthy else "unhealthy",
    )
