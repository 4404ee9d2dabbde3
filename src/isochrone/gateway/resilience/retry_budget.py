"""The retry budget: how many requests may be sent again, as a share of traffic. Pure.

The gateway asks it after an attempt failed and a repetition is safe. A fleet in trouble is never given a multiple of
its load.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from isochrone.gateway.resilience.sliding_counts import SlidingCounts
from isochrone.settings.ranges import Amount, Count, Duration, Share


class Kind(Enum):
    """The kinds of call that retries and hedges distinguish."""

    #: One inference of a stateless model: idempotent, unless its rules say otherwise.
    STATELESS = "stateless"
    #: A request of a sequence: it changes the worker's state.
    SEQUENCE = "sequence"
    #: A call with several answers, some of which may have been delivered.
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How often requests are sent again."""

    enabled: bool = True
    #: Retries as a share of first attempts over the window.
    ratio: Share = 0.1
    #: Retries per second that are allowed whatever the traffic.
    floor_per_second: Amount = 5.0
    window_ns: Duration = 10_000_000_000
    #: Attempts of one request, including the first.
    attempts: Count = 3
    #: Inference of this model may run twice. Off: only requests that no worker has begun are sent again.
    idempotent: bool = True


class Budget:
    """Extra attempts as a share of traffic over a sliding window, with a floor. Used for retries and for hedges."""

    __slots__ = ("_counts", "_floor", "_ratio", "unbooked")

    def __init__(self, ratio: float, floor_per_second: float, window_ns: int) -> None:
        self._ratio = ratio
        self._floor = floor_per_second * window_ns / 1e9
        self._counts = SlidingCounts(window_ns)
        #: First attempts that are not in the window yet: the gateway counts here and calls ``book`` ten times a second.
        self.unbooked = 0

    def book(self, now: int) -> None:
        """Move ``unbooked`` into the window."""
        if self.unbooked:
            self._counts.add(now, self.unbooked)
            self.unbooked = 0

    def take(self, now: int) -> bool:
        """Take one extra attempt from the budget; False: it is used up."""
        counts = self._counts
        self.book(now)
        counts.advance(now)
        if counts.some + 1 > counts.all * self._ratio + self._floor:
            return False
        counts.add(now, 0, 1)
        return True


def retry_budget(rules: RetryRules) -> Budget:
    """The budget of one model."""
    return Budget(
        rules.ratio if rules.enabled else 0.0, rules.floor_per_second if rules.enabled else 0, rules.window_ns
    )
