"""A tally of requests that access rules refuse: what the audit log says of callers who may not. Pure.

A stranger can send any number of such requests, so none has a record of its own. The first of a kind is recorded at
once, and those that follow within a minute are one record with their number. Kinds of one minute are bounded; what is
beyond them is counted in one record without a name. Refused changes have records of their own, as long as strangers
ask for few.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from isochrone.clock import SECOND
from isochrone.secure.audit.actor import ANONYMOUS, Actor, anonymous
from isochrone.secure.audit.records import ACCESS_REFUSE, REFUSED, Entry, timestamp

#: In which a kind has two records at most: of its first refusals, and of those that follow.
PERIOD_NS: Final = 60 * SECOND
#: Kinds of one period.
MOST: Final = 256
#: Kinds of callers who proved nothing: strangers must not take all places, and so hide who proved a name.
MOST_OF_STRANGERS: Final = 192


class Kind(NamedTuple):
    """Refusals that are counted together. ``change``: what was asked for (``model.load``); "": nothing that changes."""

    actor: Actor
    permission: str
    error: str
    change: str = ""


class FewPerPeriod:
    """Lets a number of events through in each period."""

    __slots__ = ("_ends_ns", "_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._ends_ns = 0

    def lets_through(self, now_ns: int) -> bool:
        if now_ns >= self._ends_ns:
            self._ends_ns, self._left = now_ns + PERIOD_NS, self._most
        self._left -= 1
        return self._left >= 0


class _Count:
    """Refusals of one kind that no record counts yet."""

    __slots__ = ("first_ns", "is_recorded", "last_ns", "times")

    def __init__(self) -> None:
        self.times = 0
        #: Wall clock, which may go backwards.
        self.first_ns = self.last_ns = 0
        #: Whether this period has a record of the kind.
        self.is_recorded = False

    def add(self, wall_ns: int) -> None:
        if not self.times:
            self.first_ns = wall_ns
        self.times += 1
        self.last_ns = wall_ns

    def taken(self, actor: Actor, permission: str, details: dict[str, Any]) -> Entry:
        """The record of what is counted; counting begins again."""
        counted: dict[str, Any] = {"times": self.times}
        if self.times > 1:
            counted["first"] = timestamp(self.first_ns)
        self.times, self.is_recorded = 0, True
        return Entry(self.last_ns, actor, ACCESS_REFUSE, permission, REFUSED, details | counted)


class Refusals:
    """For one thread at a time."""

    __slots__ = ("_counts", "_ends_ns", "_errors", "_others", "waiting")

    def __init__(self) -> None:
        self._counts: dict[Kind, _Count] = {}
        #: Of all kinds that have no place, and the same by their errors.
        self._others = _Count()
        self._errors: dict[str, int] = {}
        #: The end of the period, by the monotonic clock; None: none has begun.
        self._ends_ns: int | None = None
        #: Refusals that no record counts yet.
        self.waiting = 0

    def add(self, kind: Kind, wall_ns: int) -> None:
        count = self._counts.get(kind)
        if count is None:
            most = MOST_OF_STRANGERS if kind.actor.kind == ANONYMOUS else MOST
            if len(self._counts) < most:
                count = self._counts[kind] = _Count()
            else:
                count = self._others
                self._errors[kind.error] = self._errors.get(kind.error, 0) + 1
        count.add(wall_ns)
        self.waiting += 1

    def drain(self, now_ns: int, *, everything: bool = False) -> list[Entry]:
        """Records of the kinds that have none in this period; of all if it is over, or ``everything`` is wanted.

        ``now_ns``: of the monotonic clock.
        """
        if not self._counts:
            return []
        if self._ends_ns is None:
            self._ends_ns = now_ns + PERIOD_NS
        is_over = everything or now_ns >= self._ends_ns
        if not (self.waiting or is_over):
            return []
        entries = [
            count.taken(kind.actor, kind.permission, {"error": kind.error, "change": kind.change})
            for kind, count in self._counts.items()
            if count.times and (is_over or not count.is_recorded)
        ]
        others = self._others
        if others.times and (is_over or not others.is_recorded):
            entries.append(others.taken(anonymous(), "", {"beyond": len(self._counts), **self._errors}))
            self._errors = {}
        self.waiting -= sum(entry.details["times"] for entry in entries)
        if is_over:
            self._counts.clear()
            others.is_recorded = False
            self._ends_ns = None
        return entries
