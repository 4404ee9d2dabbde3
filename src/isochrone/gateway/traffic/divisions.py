"""Divisions of a divided model: how a request runs on the worker that was chosen for it, at the edge, split or at the
core. Pure.

The worker reports the late time of each kind: the expected time with waits and the link's margin. The first kind of the
order that is in time is chosen. Each worker has a link of its own, so a kind that was left is remembered by worker.
Without figures, and for a request that names its division, nothing is decided here.

Figures come with answers, so a kind that stops answering keeps its good figures. Therefore a kind whose oldest request
in flight is overdue is late by that request's age, until a request of that kind is answered promptly.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.gateway.traffic.left_options import LeftOptions
from isochrone.protocol.headers.divisions import DIVISION_KINDS
from isochrone.settings.ranges import Duration, Range

#: A worker's figures decide for this long: so a model with a request every few seconds is decided about, too. After
#: that, its waits are long over and its link may have changed: the worker knows better.
USED_NS = 10 * SECOND
#: A request in flight is overdue after this many times its late time, and at least after so long.
_OVERDUE, _LEAST_OVERDUE_NS = 2, 50 * MILLISECOND
#: Each probe that finds a kind as late as before doubles the time until the next one, up to this many times.
_MOST_WAITS = 32
#: A probe has helped if the late time is at most this share of what it was at the probe before.
_HELPED = 0.9

# Reasons, for the explanation.
NAMED = "the request names it"
EMPTY = "the request's header is empty: the worker decides"
NO_FIGURES = "the worker has reported no figures lately: it decides"
NOT_OFFERED = "the worker offers none of the order: it decides"
NO_DEADLINE = "no deadline: the first of the order that is offered"
IN_TIME = "the first of the order that is in time"
NOT_BACK = "an earlier kind was late recently and is not yet well within the deadline"
SILENT = "an earlier kind has not answered promptly; the first of the others that is in time"
JUST_IN_TIME = "it was late recently and is not yet well within the deadline, but no other kind is in time"
LATE = "none is in time: the least late"
PROBED = "it was left for being late: one request finds out whether it still is"


@dataclass(frozen=True, slots=True)
class DivisionRules:
    """How requests of a divided model run, and when a request leaves the first choice."""

    #: Kinds in the order of preference: edge, split, core; empty: the worker decides. In a rules file, a bare list is
    #: this.
    order: tuple[str, ...] = ()
    #: Safety margin before the deadline.
    margin_ns: Duration = 200_000
    #: A kind that was left is used again when its late time is at most this share of the remaining time.
    return_share: Annotated[float, Range(0.1, 1)] = 0.7
    #: It counts as left until it would have missed no deadline for this long.
    hold_ns: Duration = 500_000_000
    #: While it is left, one request is sent there at this interval; probes that find it as late as before come up to 32
    #: times as seldom.
    probe_every_ns: Duration = 1_000_000_000


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
        """The least late time of the kinds that a request may run as; 0: the worker offers none of them."""
        return min((figures[index] for index in self.indexes if figures[index]), default=0)


class WorkerDivisions(LeftOptions):
    """The same on one worker."""

    __slots__ = ("_in_flight", "_overdue_ns", "_probed_ns", "_waits", "divisions")

    def __init__(self, divisions: Divisions) -> None:
        count = len(divisions.indexes)
        super().__init__(count, divisions.rules)
        self.divisions = divisions
        #: By place in the order: attempts in flight, the oldest first, each with its start and when it is overdue.
        self._in_flight: list[dict[Hashable, tuple[int, int]]] = [{} for _ in range(count)]
        #: By place: how long an attempt took or takes that was not answered promptly; 0: the last answer was prompt.
        self._overdue_ns = [0] * count
        #: By place: intervals until the next probe, and the late time at the last one.
        self._waits = [1] * count
        self._probed_ns = [0] * count

    def choose(self, figures: Sequence[int], way_ns: int, deadline: int, now: int) -> Choice:
        """How a request runs there. ``figures``: of its load report, by kind; ``way_ns``: to the worker and back."""
        indexes = self.divisions.indexes
        left = NEVER if deadline == NEVER else deadline - now
        time = left - self.divisions.rules.margin_ns
        chosen = fitting = soonest = -1
        least, reason = 0, ""
        late: list[int] = []
        for place, index in enumerate(indexes):
            run = figures[index]
            if not run:
                # The worker knows better than the last attempt.
                self._overdue_ns[place] = 0
                continue
            overdue = self._look(place, now)
            takes = max(run, overdue) + way_ns
            if takes <= time and not overdue:
                if self._is_used(place, takes, time, now):
                    chosen = place
                    break
                # In time, but not by enough to be used again: only if no other kind is in time.
                if fitting < 0:
                    fitting = place
            else:
                late.append(place)
            if self._left[place] and self._is_probe_due(place, takes, now):
                chosen, reason = place, PROBED
                break
            if soonest < 0 or takes < least:
                soonest, least = place, takes
        if chosen >= 0:
            if not reason:
                reason = NO_DEADLINE if left == NEVER else NOT_BACK if fitting >= 0 else IN_TIME
                if any(self._overdue_ns[place] for place in late):
                    reason = SILENT
                # A deadline that no kind can meet says nothing about a kind, and does not get here.
                for place in late:
                    self._leave(place, now)
        elif fitting >= 0:
            chosen, reason = fitting, JUST_IN_TIME
        elif soonest >= 0:
            chosen, reason = soonest, LATE
        else:
            return Choice("", NOT_OFFERED, left)
        expected = tuple(run + way_ns if run else 0 for run in figures)
        return Choice(DIVISION_KINDS[indexes[chosen]], reason, left, expected, True)

    def began(self, attempt: Hashable, choice: Choice, now: int) -> None:
        """An attempt is sent as this chose."""
        index = DIVISION_KINDS.index(choice.division)
        limit = max(_OVERDUE * choice.expected_ns[index], _LEAST_OVERDUE_NS)
        self._in_flight[self.divisions.indexes.index(index)][attempt] = now, now + limit

    def ended(self, attempt: Hashable, now: int, *, answered: bool) -> None:
        """It is over. ``answered``: well; one that was given up says something only if it was overdue."""
        for place, in_flight in enumerate(self._in_flight):
            known = in_flight.pop(attempt, None)
            if known is not None:
                begun, overdue_at = known
                if now > overdue_at:
                    # Even if it was answered: perhaps by another division, when this one had failed.
                    self._overdue_ns[place] = max(self._overdue_ns[place], now - begun)
                elif answered:
                    self._overdue_ns[place] = 0
                return

    def _look(self, place: int, now: int) -> int:
        """How late the kind is by its attempts; 0: none is overdue."""
        for begun, overdue_at in self._in_flight[place].values():
            if now > overdue_at:
                self._overdue_ns[place] = max(self._overdue_ns[place], now - begun)
            break
        return self._overdue_ns[place]

    def _is_probe_due(self, place: int, takes: int, now: int) -> bool:
        if not self._may_probe(place, now, self._waits[place]):
            return False
        before, self._probed_ns[place] = self._probed_ns[place], takes
        helped = not before or takes <= _HELPED * before
        self._waits[place] = 1 if helped else min(2 * self._waits[place], _MOST_WAITS)
        return True

    def _leave(self, index: int, now: int) -> None:
        if not self._left[index]:
            self._probed_at[index] = now
            self._waits[index], self._probed_ns[index] = 1, 0
        super()._leave(index, now)
