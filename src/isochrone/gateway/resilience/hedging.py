"""Whether a second copy of a slow request may go to another worker, and after how long. Pure.

One object per model. The shell asks for the delay when it sends, sets a timer, and asks again when it fires; the
answer that comes first wins and the other copy is cancelled. A hedge never goes to a busy fleet, and never for what
must run once. After The Tail at Scale (Dean and Barroso, CACM 2013): hedging after the p95 costs about 5 % more load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from isochrone.gateway.replicas import NEWS_NS, Replica
from isochrone.gateway.resilience.latency_quantile import LatencyQuantile
from isochrone.gateway.resilience.retry_budget import Budget, Kind
from isochrone.settings.ranges import Count, Duration, Range, Share

#: Workers looked at to tell whether the fleet is busy.
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """When a second copy goes out."""

    #: Off for models whose inference must not run twice; so it is where ``retries.idempotent`` is.
    enabled: bool = True
    #: The delay is this quantile of the model's latency.
    quantile: Annotated[float, Range(0.5, 0.999)] = 0.95
    #: Copies as a share of requests over ten seconds.
    ratio: Share = 0.05
    #: The delay is never shorter: below this, timers cost more than they gain.
    least_delay_ns: Duration = 1_000_000
    #: Latencies seen before the quantile is believed.
    least_seen: Count = 100
    #: The fleet is busy, and nothing is hedged, when more than this share of it has requests waiting.
    busy_share: Share = 0.5
    #: A worker that tells no queue counts as busy from so many requests in flight from here.
    busy_in_flight: Count = 4


class Hedging:
    """The hedges of one model."""

    __slots__ = ("_budget", "_latency", "_random", "rules")

    def __init__(self, rules: HedgeRules, random: Random) -> None:
        self.rules = rules
        self._random = random
        self._latency = LatencyQuantile(rules.quantile)
        # No floor: a share of nothing is nothing, and a lone request has little to fear.
        self._budget = Budget(rules.ratio, 0.0, 10_000_000_000)

    def sent(self, count: int, now: int) -> None:
        """So many first attempts were sent; hedges are a share of these."""
        self._budget.unbooked += count
        self._budget.book(now)

    def ended(self, latency_ns: int) -> None:
        """A request ended well after so long, counted from its first copy."""
        self._latency.add(latency_ns)

    def delay_ns(self, kind: Kind, deadline: int, now: int) -> int | None:
        """How long to wait before a second copy; None: there will be none."""
        rules = self.rules
        if not rules.enabled or kind is not Kind.STATELESS or self._latency.count < rules.least_seen:
            return None
        delay = max(self._latency.value(), rules.least_delay_ns)
        return delay if now + delay < deadline else None

    def may_send(self, eligible: Sequence[Replica], second: Replica, now: int) -> bool:
        """The delay has passed: whether the copy goes to ``second`` now. Takes it from the budget."""
        rules = self.rules
        if not rules.enabled or self._is_busy(second, now):
            return False
        count = len(eligible)
        looks = min(count, _SAMPLE)
        start = self._random.randrange(count) if count else 0
        busy = sum(self._is_busy(eligible[(start + step) % count], now) for step in range(looks))
        return busy <= rules.busy_share * looks and self._budget.take(now)

    def _is_busy(self, replica: Replica, now: int) -> bool:
        if replica.reported_at and now - replica.reported_at <= NEWS_NS:
            return replica.report.queue > 0 or replica.sent_since > self.rules.busy_in_flight
        return replica.in_flight >= self.rules.busy_in_flight
