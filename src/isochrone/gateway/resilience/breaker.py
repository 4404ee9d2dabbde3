"""A circuit breaker for one model on one endpoint. Pure.

The gateway consults it between the policy's choice and the sending; if the breaker refuses, another endpoint is chosen.
Three states: closed (all requests pass), open (none passes, for some time), half-open (a few trial requests pass: the
breaker closes when all succeed and opens for longer when one fails). It is created at the first failure, so a healthy
endpoint has none. Its state changes only in calls; it needs no timer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from isochrone.gateway.resilience.sliding_counts import SlidingCounts
from isochrone.settings.ranges import Count, Duration, Positive, Range

#: The round of requests that were sent before the breaker was created.
FIRST_ROUND: Final = 0


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When requests of one model are kept from one worker."""

    enabled: bool = True
    #: Limit of the model's requests in flight on one worker from this gateway; 0: none.
    max_in_flight: Count = 1024
    #: The breaker opens when this share of the requests in the window failed ...
    failure_ratio: Annotated[float, Range(0.01, 1)] = 0.5
    #: ... and there were at least this many.
    least_requests: Positive = 20
    window_ns: Duration = 10_000_000_000
    #: How long it stays open. Each time in a row doubles it, up to ``most_open_ns``.
    open_ns: Duration = 1_000_000_000
    most_open_ns: Duration = 30_000_000_000
    #: Trial requests in flight at once while half-open, and successes that close it.
    trials: Positive = 3


class Breaker:
    """One model on one endpoint."""

    __slots__ = (
        "_counts",
        "_opened",
        "_round",
        "_succeeded",
        "_trials",
        "_until",
        "rules",
        "state",
    )

    def __init__(self, rules: BreakerRules | None = None) -> None:
        self.rules = rules or BreakerRules()
        self.state = State.CLOSED
        self._counts = SlidingCounts(self.rules.window_ns)
        #: Grows with each change of state: a request counts only in the round in which it was sent.
        self._round = FIRST_ROUND
        #: When it becomes half-open; how often it has opened in a row.
        self._until = 0
        self._opened = 0
        #: While half-open: trial requests in flight, and those that succeeded.
        self._trials = 0
        self._succeeded = 0

    def refusal(self, now: int) -> str:
        """Why a request must not be sent now; "": it may."""
        rules = self.rules
        if not rules.enabled:
            return ""
        if self.state is State.CLOSED:
            return ""
        if self.state is State.OPEN:
            if now < self._until:
                return "circuit breaker: open"
            self._change(State.HALF_OPEN)
        if self._trials >= rules.trials:
            return "circuit breaker: half-open and being tried"
        return ""

    def is_idle(self, now: int) -> bool:
        """Whether it is closed without failures in the window, so that it can be discarded."""
        self._counts.advance(now)
        return self.state is State.CLOSED and not self._counts.some

    def sent(self) -> int:
        """Count a request that is sent. ``ended`` or ``dropped`` needs the returned round."""
        if self.state is State.HALF_OPEN:
            self._trials += 1
        return self._round

    def dropped(self, sent_in: int) -> None:
        """Count a request that ended without evidence about the endpoint."""
        if self.state is State.HALF_OPEN and sent_in == self._round:
            self._trials -= 1

    def ended(self, sent_in: int, failed: bool, now: int) -> None:
        """Count a request that ended. One that was sent before the last change of state is no evidence."""
        if sent_in != self._round or not self.rules.enabled or self.state is State.OPEN:
            return
        if self.state is State.HALF_OPEN:
            self._trials -= 1
            if failed:
                self._open(now)
                return
            self._succeeded += 1
            if self._succeeded >= self.rules.trials:
                self._opened = 0
                self._change(State.CLOSED)
            return
        counts, rules = self._counts, self.rules
        counts.add(now, 1, failed)
        if failed and counts.all >= rules.least_requests and counts.some >= rules.failure_ratio * counts.all:
            self._open(now)

    def _open(self, now: int) -> None:
        rules = self.rules
        self._until = now + min(rules.open_ns << min(self._opened, 30), rules.most_open_ns)
        self._opened += 1
        self._change(State.OPEN)

    def _change(self, state: State) -> None:
        self.state = state
        self._round += 1
        self._trials = self._succeeded = 0
        self._counts.clear()
