"""A circuit breaker for one model on one endpoint. Pure.

Consulted after a policy has chosen and before the request is sent; on a refusal another endpoint is chosen. Three
states: closed (every request passes), open (none does, for a while), half-open (a few requests are let through: when
all succeed it closes, when one fails it opens again for longer). Made at the first failure: a healthy endpoint has
none. State changes only when it is called, so nothing runs while nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from isochrone.gateway.resilience.sliding_counts import SlidingCounts
from isochrone.settings.ranges import Count, Duration, Positive, Range

#: The round of requests that were sent before the breaker was made.
FIRST_ROUND = 0


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When one worker gets no more of one model."""

    enabled: bool = True
    #: Requests of the model in flight on one worker from this gateway; 0: no limit.
    max_in_flight: Count = 1024
    #: It opens when this share of requests failed over the window ...
    failure_ratio: Annotated[float, Range(0.01, 1)] = 0.5
    #: ... and there were at least so many.
    least_requests: Positive = 20
    window_ns: Duration = 10_000_000_000
    #: How long it stays open the first time; each time in a row twice as long, up to the most.
    open_ns: Duration = 1_000_000_000
    most_open_ns: Duration = 30_000_000_000
    #: Requests that try it at once while half-open, and how many must go well in a row to close it.
    trials: Positive = 3


class Breaker:
    """One model on one endpoint."""

    __slots__ = (
        "_counts",
        "_opened",
        "_round",
        "_tried",
        "_until",
        "_went_well",
        "rules",
        "state",
    )

    def __init__(self, rules: BreakerRules | None = None) -> None:
        self.rules = rules or BreakerRules()
        self.state = State.CLOSED
        self._counts = SlidingCounts(self.rules.window_ns)
        #: Grows with each change of state: an ending counts only in the round it was sent in.
        self._round = FIRST_ROUND
        #: When an open one becomes half-open; times it opened in a row.
        self._until = 0
        self._opened = 0
        #: While half-open: requests under way, and requests that went well.
        self._tried = 0
        self._went_well = 0

    def refusal(self, now: int) -> str:
        """Why a request must not go there now; "": it may."""
        rules = self.rules
        if not rules.enabled:
            return ""
        if self.state is State.CLOSED:
            return ""
        if self.state is State.OPEN:
            if now < self._until:
                return "circuit breaker: open"
            self._change(State.HALF_OPEN)
        if self._tried >= rules.trials:
            return "circuit breaker: half-open and being tried"
        return ""

    def is_idle(self, now: int) -> bool:
        """Closed, and no failure within the window: it can be forgotten."""
        self._counts.advance(now)
        return self.state is State.CLOSED and not self._counts.some

    def sent(self) -> int:
        """A request is sent; pass the returned round to ``ended`` or ``dropped``."""
        if self.state is State.HALF_OPEN:
            self._tried += 1
        return self._round

    def dropped(self, sent_in: int) -> None:
        """A request ended without evidence about the endpoint: its caller has gone, or a hedge won."""
        if self.state is State.HALF_OPEN and sent_in == self._round:
            self._tried -= 1

    def ended(self, sent_in: int, failed: bool, now: int) -> None:
        """A request ended. One that was sent before the last change of state is no evidence about the present one."""
        if sent_in != self._round or not self.rules.enabled or self.state is State.OPEN:
            return
        if self.state is State.HALF_OPEN:
            self._tried -= 1
            if failed:
                self._open(now)
                return
            self._went_well += 1
            if self._went_well >= self.rules.trials:
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
        self._tried = self._went_well = 0
        self._counts.clear()
