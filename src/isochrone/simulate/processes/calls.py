"""One request on its way through the simulated fleet, and the ways it can end."""

from __future__ import annotations

from typing import Protocol

from isochrone.gateway.policies.base import NEVER, Demand
from isochrone.gateway.replicas import LoadReport, Replica
from isochrone.simulate.results.tally import Tally

#: What a worker answered.
ANSWERED, REFUSED, TOO_LATE, FAILED = range(4)
#: Where a call is, as its worker knows it.
ELSEWHERE, QUEUED, RUNNING = range(3)


class Sender(Protocol):
    """The process that sent a call and waits for its answer: a gateway."""

    def answered(self, now: int, call: Call) -> None: ...


class Call:
    """Grouped by who sets it: the workload; the gateway; the worker."""

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
        #: When it reached its gateway.
        self.arrived = arrived
        #: In units of a mean request.
        self.work = work
        self.gateway = gateway
        #: Where its outcome is counted.
        self.tally = tally
        self.deadline = deadline
        self.rows = rows
        self.priority = 0
        #: Kept for a second attempt.
        self.demand: Demand | None = None
        self.replica: Replica | None = None
        #: What the balancer wants back at the end.
        self.load = 0
        self.sent_at = 0
        self.attempts = 0
        #: Its client has its answer, or has given up.
        self.over = False
        self.outcome = ANSWERED
        #: The worker's word with the answer; None: it gave none.
        self.report: LoadReport | None = None
        self.place = ELSEWHERE
        #: When it came to its worker, and how many it met there, itself included.
        self.entered = 0
        self.met = 0
