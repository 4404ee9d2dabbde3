"""A decision about the size of a pool, with its reason and the figures that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a pool should have this many workers."""

    #: The pool has what it needs.
    STEADY = "steady"
    #: The load of now or of a start-up time ahead needs more.
    LOAD = "load"
    #: The daily pattern needs more a start-up time ahead.
    FORECAST = "forecast"
    #: Requests wait or are refused although the measured capacity should suffice.
    QUEUE = "queue"
    #: Fewer workers suffice, and have for the whole window.
    SURPLUS = "surplus"
    #: A request arrived at a pool without workers.
    WAKE = "wake"
    #: No request for so long that the pool may have no worker.
    IDLE = "idle"
    #: The readings are too old, missing or not numbers.
    STALE = "stale"
    #: The clock went backwards or jumped.
    CLOCK = "clock"
    #: No worker has reported its capacity yet.
    UNMEASURED = "unmeasured"
    #: More are needed than the pool may have.
    MAXIMUM = "maximum"
    #: More are needed than may be paid for.
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a decision was made of, for the log of events. Rates are in requests per second."""

    offered: float | None = None
    refused: float = 0.0
    queue_wait: float = 0.0
    #: Expected load a start-up time ahead, and what is added for its past errors.
    expected: float = 0.0
    margin: float = 0.0
    #: Load of the daily pattern a start-up time ahead; 0: no pattern.
    forecast: float = 0.0
    #: Capacity of one more worker, after correction.
    capacity: float = 0.0
    #: Capacity of all workers that serve or will, after correction.
    total_capacity: float = 0.0
    ready: int = 0
    pending: int = 0
    standby: int = 0
    draining: int = 0
    #: Workers that the load needs, before bounds.
    needed: int = 0
    #: Why the load is not known; "": it is.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """``desired``: workers that serve or start; standby and draining ones are not among them.

    To reach a lower number, the workers that start are ended first, then the weakest: the decision was checked for that
    order.
    """

    desired: int
    reason: Reason
    inputs: Inputs

    @property
    def explanation(self) -> str:
        """The figures that led to it, for people."""
        given = self.inputs
        if given.offered is None:
            why = f": {given.problem}" if given.problem else ""
            return f"the load is not known{why}; {_workers(given)}"
        parts = [f"{given.offered:,.4g} requests/s, {given.expected:,.4g} expected and {given.margin:,.4g} for errors"]
        if given.forecast > given.expected:
            parts.append(f"{given.forecast:,.4g} of the daily pattern")
        if given.refused:
            parts.append(f"{given.refused:,.4g} refused")
        if given.queue_wait:
            parts.append(f"{given.queue_wait * 1e3:,.3g} ms of waiting")
        parts.append(f"{given.capacity:,.4g} requests/s for each worker")
        if self.reason in (Reason.MAXIMUM, Reason.COST):
            parts.append(f"{given.needed} workers needed")
        return "; ".join((*parts, _workers(given)))


def _workers(given: Inputs) -> str:
    counts = {"ready": given.ready, "starting": given.pending, "standing by": given.standby, "leaving": given.draining}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no workers"
