"""When to report that a pool has not the workers that it needs, or that nobody knows what it needs. Pure.

A limit is reported when it begins, not at every reading. Readings that are missing at first, or once, are no news.
"""

from __future__ import annotations

from isochrone.control.autoscaler.decision import Decision, Reason

#: By limit: the seconds for which it must have held.
_HELD_SECONDS = {
    Reason.MAXIMUM: 0.0,
    Reason.COST: 0.0,
    Reason.CLOCK: 0.0,
    Reason.STALE: 10.0,
    Reason.UNMEASURED: 10.0,
}
#: Seconds without a limit before it is reported again.
_QUIET_SECONDS = 60.0


class LimitReports:
    """Of one pool."""

    def __init__(self) -> None:
        #: The present limit and since when; and by reported limit, when it was in effect last.
        self._present: tuple[Reason, float] | None = None
        self._reported: dict[Reason, float] = {}

    def is_news(self, decision: Decision, now: float) -> bool:
        """Whether to report the limit of a decision; ``now``: of a monotonic clock."""
        reason = decision.reason
        # A pool without requests needs no measured capacity.
        if reason not in _HELD_SECONDS or (reason is Reason.UNMEASURED and not decision.inputs.offered):
            self._present = None
            return False
        if self._present is None or self._present[0] is not reason:
            self._present = reason, now
        if now - self._present[1] < _HELD_SECONDS[reason]:
            return False
        before, self._reported[reason] = self._reported.get(reason), now
        return before is None or now - before > _QUIET_SECONDS
