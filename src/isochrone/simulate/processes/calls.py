"""One attempt of a request as a simulated worker has it, and the ways it can end."""

from __future__ import annotations

from typing import Protocol

from isochrone.clock import NEVER
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.requests.request import Attempt
from isochrone.simulate.results.tally import Tally

#: The model of simulations that have one.
MODEL = "model"
#: Outcomes of a call: answered; rejected; too late for its deadline; an error; lost with its process; no process there.
ANSWERED, REFUSED, TOO_LATE, FAILED, LOST, UNREACHABLE = range(6)
#: Places of a call at its worker.
ELSEWHERE, QUEUED, RUNNING = range(3)


class Sender(Protocol):
    """The process that sent a call and waits for its answer: a gateway."""

    def answered(self, now: int, call: Call) -> None: ...


class Call:
    """One attempt. Fields are grouped by their writer: gateway, worker."""

    __slots__ = (
        "arrived",
        "attempt",
        "deadline",
        "entered",
        "gateway",
        "met",
        "model",
        "outcome",
        "over",
        "place",
        "priority",
        "report",
        "rows",
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
        self.model = MODEL
        self.attempt: Attempt | None = None
        #: Its gateway waits for it no longer.
        self.over = False
        self.outcome = ANSWERED
        #: The worker's load report with the answer; None: it gave none.
        self.report: LoadReport | None = None
        self.place = ELSEWHERE
        #: Arrival at its worker, and the number of requests in flight there, including this one.
        self.entered = 0
        self.met = 0
