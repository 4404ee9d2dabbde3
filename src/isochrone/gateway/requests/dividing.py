"""How an attempt of a divided model runs on its worker: the worker's figures for the decision, and its count. Pure."""

from __future__ import annotations

from isochrone.clock import NEVER
from isochrone.gateway.replicas import Replica
from isochrone.gateway.requests.request import Request
from isochrone.gateway.traffic.divisions import NAMED, NO_FIGURES, USED_NS, Choice, Divisions, WorkerDivisions
from isochrone.protocol.divisions import DIVISION_HEADER

#: Characters of a division that a request names, in an explanation.
_MOST_SHOWN = 64


def names_division(request: Request) -> bool:
    """Whether the caller has decided how its request runs."""
    return request.head.get(DIVISION_HEADER) is not None


def divide(request: Request, divisions: Divisions, replica: Replica, now: int) -> Choice:
    """How a request runs on a replica that was chosen for it."""
    deadline = min(request.deadline, request.first_due)
    time_left = NEVER if deadline == NEVER else deadline - now
    named = request.head.get(DIVISION_HEADER)
    if named is not None:
        return Choice(named[:_MOST_SHOWN].decode("latin-1"), NAMED, time_left)
    if replica.endpoint.last_report_at > replica.reported_at:
        replica.take_report()
    figures = replica.report.divisions
    if figures is None or now - replica.times_at > USED_NS:
        return Choice("", NO_FIGURES, time_left)
    there: WorkerDivisions | None = replica.divisions
    if there is None or there.divisions is not divisions:
        # The first request, or the rules have changed since.
        there = replica.divisions = WorkerDivisions(divisions)
    choice = there.choose(figures, request.served.tiers.way_of(replica.endpoint.tier), deadline, now)
    if choice.is_sent and request.shadow is None and not request.tried:
        divisions.requests[choice.division] += 1
    return choice
