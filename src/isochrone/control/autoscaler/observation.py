"""One reading of a pool: its load and its workers, as the control plane knows them at one instant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """Capacities are rates within the SLO, in requests per second, one number for each worker: kinds may differ."""

    #: Of a monotonic clock, in seconds.
    instant: float
    #: Requests per second that arrived since the last reading, with those that were refused; None: not known.
    offered: float | None
    #: Of the offered: requests per second that were refused because no worker could meet their deadlines.
    refused: float = 0.0
    #: Seconds that an admitted request waits now before its batch starts.
    queue_wait: float = 0.0
    ready: tuple[float, ...] = ()
    #: Workers that start. Their capacities are expected ones.
    pending: tuple[float, ...] = ()
    #: Warm workers that take no requests yet.
    standby: tuple[float, ...] = ()
    #: Workers that have left routing and finish what they have.
    draining: tuple[float, ...] = ()
    #: Seconds since the load was read.
    age: float = 0.0
    #: Of one worker for one hour, in the unit of the cost cap.
    cost_per_worker: float = 1.0
    #: Seconds since local midnight, for daily patterns; None: there is no forecast.
    time_of_day: float | None = None
    #: Requests or streams are in flight, though none may have arrived since the last reading.
    is_busy: bool = False
    #: Why the offered load is not known, where somebody can change it.
    problem: str = ""

    @property
    def workers(self) -> int:
        """Workers that serve or will: those that a decision counts."""
        return len(self.ready) + len(self.pending)
