"""How an attempt of a divided model runs on its worker: the worker's figures for the decision, and its count. Pure."""

from __future__ import annotations

from isochrone.clock import NEVER
from isochrone.gateway.replicas import Replica
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.divisions import EMPTY, NAMED, NO_FIGURES, USED_NS, Choice, Divisions, WorkerDivisions
from isochrone.protocol.headers.divisions import DIVISION_HEADER, division_of

#: Characters of a division that a request names, in an explanation.
_MOST_SHOWN = 64


def names_division(request: Request) -> bool:
    """Whether the caller has decided how its request runs."""
    return bool(division_of(request.head))


def divide(request: Request, divisions: Divisions, replica: Replica, now: int) -> Choice:
    """How a request runs on a replica that was chosen for it."""
    deadline = min(request.deadline, request.first_due)
    time_left = NEVER if deadline == NEVER else deadline - now
    if request.head.get(DIVISION_HEADER) is not None:
        # The header passes unchanged, and the worker reads the first one.
        named = division_of(request.head)[:_MOST_SHOWN]
        return Choice(named, NAMED if named else EMPTY, time_left)
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


def begin_division(attempt: Attempt, divisions: Divisions, now: int) -> None:
    """Decide how an attempt runs, and watch whether it is answered in time."""
    request, replica = attempt.request, attempt.replica
    choice = attempt.division = divide(request, divisions, replica, now)
    # How long a stream lasts is its caller's choice; a copy is no evidence about a replica.
    if choice.is_sent and request.kind is not Kind.STREAM and request.shadow is None:
        replica.divisions.began(attempt, choice, now)


def end_division(attempt: Attempt, now: int, *, answered: bool) -> None:
    """The attempt is over."""
    there: WorkerDivisions | None = attempt.replica.divisions
    if there is not None:
        there.ended(attempt, now, answered=answered)
