"""One request in the simulated fleet, and its possible outcomes."""

from __future__ import annotations

from typing import Protocol

from isochrone.gateway.policies.base import NEVER, Demand
from isochrone.gateway.replicas import LoadReport, Replica
from isochrone.simulate.results.tally import Tally

#: Outcomes of a call at its worker.
ANSWERED, REFUSED, TOO_LATE, FAILED = range(4)
#: Places of a call at its worker.
ELSEWHERE, QUEUED, RUNNING = range(3)


class Sender(Protocol):
    """The process that sent a call and waits for its answer: a gateway."""

    def answered(self, now: int, call: Call) -> None: ...


class Call:
    """One request. Fields are grouped by their writer: workload, gateway, worker."""

    __slots__ = (
        "arrived",
        "attempts",
        "deadline",
        "demand",
        "entered",
        "gateway",
        "load",
        "met",
        "outcome",
        "over",
        "place",
        "priority",
        "replica",
        "report",
        "rows",
        "sent_at",
        "tally",
        "work",
    )

    def __init__(
        self, arrived: int, work: float, gateway: Sender, tally: Tally, deadline: int = NEVER, rows: int = 1
    ) -> None:
        #: Arrival at its gateway.
        self.arrived = arrived
        #: In units of a mean request.
        self.work = work
        self.gateway = gateway
        #: Counts its outcome.
        self.tally = tally
        self.deadline = deadline
        self.rows = rows
        self.priority = 0
        #: Kept for a second attempt.
        self.demand: Demand | None = None
        self.replica: Replica | None = None
        #: The replica's load at the time of sending, which the balancer needs at the end.
        self.load = 0
        self.sent_at = 0
        self.attempts = 0
        #: The client has its answer, or has given up.
        self.over = False
        self.outcome = ANSWERED
        #: The load report that came with the answer, if any.
        self.report: LoadReport | None = None
        self.place = ELSEWHERE
        #: Arrival at its worker, and the number of requests in flight there, including this one.
        self.entered = 0
        self.met = 0
