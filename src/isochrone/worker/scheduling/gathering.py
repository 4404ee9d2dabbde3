"""Whether requests of a batching model should wait for each other at all. Pure.

Requests that arrive in one turn of the loop can run as one batch: they wait until the end of the turn, are queued,
gathered into one tensor and split again. For a cheap model that costs more than running each at once. What each way
costs per request is measured here, and the cheaper one is used; now and then a few requests go the other way, since
both change with the load: a batch of two saves less than a batch of twenty.
"""

from __future__ import annotations

from statistics import median

#: A trial of the other way follows this long after the last one, and this many requests after it.
_TRIAL_PAUSE_NS = 200_000_000
_TRIAL_EVERY = 512
#: Costs that decide a trial, and requests after which it ends without: one at a time, there are no batches to measure.
_TRIAL_COSTS = 3
_TRIAL_REQUESTS = 256
#: The other way must be cheaper by this factor.
_ADVANTAGE = 0.95
#: A batch must be this much cheaper per request than running each at once: its callers wait for each other, and their
#: next requests come all at once while the worker was idle.
_WAITING = 1.25


class Gathering:
    """The choice of one model version. Starts with gathering."""

    __slots__ = ("_costs", "_current", "_decided", "_left", "_trial", "gathers")

    def __init__(self) -> None:
        #: Whether a request that could run at once waits for others. Read directly on the hot path.
        self.gathers = True
        #: ns per request of the way in use, a running median: a stall of the machine moves it a little; 0: not known.
        self._current = 0.0
        #: A trial of the other way is under way; the costs that it measured.
        self._trial = False
        self._costs: list[float] = []
        #: Requests until the trial begins, or ends; and when the last one ended.
        self._left = _TRIAL_REQUESTS
        self._decided = 0

    def ran_alone(self, nanoseconds: int, now: int, requests: int = 1) -> None:
        """One of ``requests`` that ran at once; ``nanoseconds``: of the loop's time."""
        self._ran(requests, nanoseconds, now, together=False)

    def ran_together(self, requests: int, nanoseconds: int, now: int) -> None:
        """A batch of several requests ran on the loop's thread."""
        self._ran(requests, _WAITING * nanoseconds / requests, now, together=True)

    def ran_on_a_thread(self, requests: int, now: int) -> None:
        """A batch ran where it costs the loop's thread little: nothing is learned, but a trial must end."""
        self._count(requests, now)

    def _ran(self, requests: int, cost: float, now: int, *, together: bool) -> None:
        if together == self.gathers:
            if self._trial:
                self._costs.append(cost)
            else:
                self._note(cost)
        self._count(requests, now)

    def _count(self, requests: int, now: int) -> None:
        self._left -= requests
        if self._trial:
            if len(self._costs) >= _TRIAL_COSTS:
                self._decide(median(self._costs), now)
            elif self._left <= 0:
                self._decide(0.0, now)
        elif self._left <= 0 and now - self._decided > _TRIAL_PAUSE_NS:
            self._trial = True
            self._left = _TRIAL_REQUESTS
            self.gathers = not self.gathers

    def _note(self, cost: float) -> None:
        current = self._current
        if not current:
            self._current = cost
        elif cost > current:
            self._current = min(cost, current * 1.1)
        else:
            self._current = max(cost, current / 1.1)

    def _decide(self, cost: float, now: int) -> None:
        """Ends the trial; ``cost``: per request, 0 if nothing was measured."""
        self._trial = False
        self._decided = now
        self._costs.clear()
        self._left = _TRIAL_EVERY
        if cost and (not self._current or cost < self._current * _ADVANTAGE):
            self._current = cost
        else:
            self.gathers = not self.gathers
