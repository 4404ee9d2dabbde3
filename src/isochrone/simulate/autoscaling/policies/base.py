"""What an autoscaling algorithm gets, and what it answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """The state of the pool. Means are over the algorithm's ``window``; the rest is of this instant."""

    #: Seconds since the start of the run, and since midnight.
    instant: int
    time_of_day: int
    #: Numbers of workers. Pending ones start; draining includes standby workers that start.
    ready: int
    pending: int
    standby: int = 0
    draining: int = 0
    #: Mean requests per second that arrived, refused ones included.
    offered: float = 0.0
    refused: float = 0.0
    #: Mean answers relative to the capacity within the SLO, from 0 to 1.
    utilisation: float = 0.0
    #: Requests in the pool, queued ones included.
    in_flight: float = 0.0
    queued: float = 0.0
    #: Measured capacity of each ready worker, in requests per second.
    capacities: tuple[float, ...] = ()
    #: Capacity of a new worker, as a profile before the first deployment gave it.
    nominal: float = 1.0
    #: Requests in flight on one worker that is fully used.
    full_in_flight: float = 1.0


class Policy(Protocol):
    """One algorithm with its settings, and the state of one run."""

    #: Seconds between two decisions.
    interval: int
    #: Seconds over which its metrics are means.
    window: int

    def desired(self, reading: Reading) -> int:
        """Workers that serve or start, from now on."""
