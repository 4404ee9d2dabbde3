"""Divisions of a divided model: how a request runs on the worker that was chosen for it, at the edge, split or at the
core. Pure.

The worker reports the expected late time of each kind. The first kind of the order that is in time is chosen. Each
worker has a link of its own, so a kind that was left is remembered by worker. Without figures, and for a request that
names its division, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from isochrone.clock import NEVER, SECOND
from isochrone.gateway.traffic.left_options import LeftOptions
from isochrone.protocol.divisions import DIVISION_KINDS
from isochrone.settings.ranges import Duration, Range

#: A worker's figures decide for this long: so a model with a request every few seconds is decided about, too. After
#: that, its waits are long over and its link may have changed: the worker knows better.
USED_NS = 10 * SECOND

# Reasons, for the explanation.
NAMED = "the request names it"
NO_FIGURES = "the worker has reported no figures lately: it decides"
NOT_OFFERED = "the worker offers none of the order: it decides"
NO_DEADLINE = "no deadline: the first of the order that is offered"
IN_TIME = "the first of the order that is in time"
NOT_BACK = "the first of the order that is in time and not left; one before it was late and is not well within the time"
JUST_IN_TIME = "it was late and is not well within the time, but none of the others is in time"
LATE = "none is in time: the least late"


@dataclass(frozen=True, slots=True)
class DivisionRules:
    """How requests of a divided model run, and when a request leaves the first choice."""

    #: Kinds in the order of preference: edge, split, core; empty: the worker decides. In a rules file, a bare list is
    #: this.
    order: tuple[str, ...] = ()
    #: Safety margin before the deadline.
    margin_ns: Duration = 200_000
    #: A kind that was left is used again when its expected time is at most this share of the remaining time.
    return_share: Annotated[float, Range(0.1, 1)] = 0.7
    #: It counts as left until it would have missed no deadline for this long.
    hold_ns: Duration = 500_000_000


class Choice(NamedTuple):
    """How one attempt runs."""

    #: A kind or, from a request that names one, any division; "": the worker decides.
    division: str
    reason: str
    #: Until the deadline, when this was decided; NEVER: there is none.
    time_left_ns: int
    #: By kind, in the order of ``DIVISION_KINDS``: with the way there and back; 0: not offered.
    expected_ns: tuple[int, ...] = ()
    #: The gateway adds the header. A request that names its division has it.
    is_sent: bool = False


class Divisions:
    """The divisions of one model on one gateway."""

    __slots__ = ("indexes", "requests", "rules")

    def __init__(self, rules: DivisionRules) -> None:
        self.rules = rules
        #: The order, as indexes into a worker's figures.
        self.indexes = tuple(DIVISION_KINDS.index(kind) for kind in rules.order)
        #: Requests by the kind that was chosen for their first attempt.
        self.requests = dict.fromkeys(DIVISION_KINDS, 0)

    def least_ns(self, figures: Sequence[int]) -> int:
        """The least expected time of the kinds that a request may run as; 0: the worker offers none of them."""
        return min((figures[index] for index in self.indexes if figures[index]), default=0)


class WorkerDivisions(LeftOptions):
    """The same on one worker."""

    __slots__ = ("divisions",)

    def __init__(self, divisions: Divisions) -> None:
        super().__init__(len(divisions.indexes), divisions.rules)
        self.divisions = divisions

    def choose(self, figures: Sequence[int], way_ns: int, deadline: int, now: int) -> Choice:
        """How a request runs there. ``figures``: of its load report, by kind; ``way_ns``: to the worker and back."""
        indexes = self.divisions.indexes
        left = NEVER if deadline == NEVER else deadline - now
        time = left - self.divisions.rules.margin_ns
        chosen = fitting = soonest = -1
        least = 0
        for place, index in enumerate(indexes):
            run = figures[index]
            if not run:
                continue
            takes = run + way_ns
            if takes <= time:
                if self._is_used(place, takes, time, now):
                    chosen = place
                    break
                # In time, but not by enough to be used again: only if no other kind is in time.
                if fitting < 0:
                    fitting = place
            if soonest < 0 or takes < least:
                soonest, least = place, takes
        if chosen >= 0:
            reason = NO_DEADLINE if left == NEVER else NOT_BACK if fitting >= 0 else IN_TIME
            self._went(chosen, figures, way_ns, time, now)
        elif fitting >= 0:
            chosen, reason = fitting, JUST_IN_TIME
        elif soonest >= 0:
            chosen, reason = soonest, LATE
        else:
            return Choice("", NOT_OFFERED, left)
        expected = tuple(run + way_ns if run else 0 for run in figures)
        return Choice(DIVISION_KINDS[indexes[chosen]], reason, left, expected, True)

    def _went(self, chosen: int, figures: Sequence[int], way_ns: int, time: int, now: int) -> None:
        """Mark the kinds before the chosen one that would have been late as left.

        A deadline that no kind can meet says nothing about a kind, and does not get here.
        """
        for place in range(chosen):
            run = figures[self.divisions.indexes[place]]
            if run and run + way_ns > time:
                self._leave(place, now)
