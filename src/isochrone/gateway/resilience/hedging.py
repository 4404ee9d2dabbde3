"""Hedging: when a second copy of a slow request is sent to another worker. Pure.

One object per model. The gateway asks for the delay, and asks again when the delay has passed. The first answer wins
and the other attempt is cancelled. A hedge is never sent to a busy fleet, nor for a request that must run once. Source:
Dean and Barroso, "The Tail at Scale", CACM 2013: hedging after the p95 costs about 5 % more load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from isochrone.gateway.replicas import FRESH_NS, Replica
from isochrone.gateway.resilience.latency_quantile import LatencyQuantile
from isochrone.gateway.resilience.retry_budget import Budget, Kind
from isochrone.settings.ranges import Count, Duration, Range, Share

#: Replicas that are sampled to decide whether the fleet is busy.
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """When a hedge is sent."""

    #: Off for models whose inference must not run twice. ``retries.idempotent: false`` switches it off too.
    enabled: bool = True
    #: The hedge is sent after this quantile of the model's latency.
    quantile: Annotated[float, Range(0.5, 0.999)] = 0.95
    #: Hedges as a share of requests over ten seconds.
    ratio: Share = 0.05
    #: The shortest delay: below this, timers cost more than hedges gain.
    least_delay_ns: Duration = 1_000_000
    #: Measured latencies before the quantile is used.
    least_seen: Count = 100
    #: The fleet is busy, and nothing is hedged, when more than this share of its workers has requests waiting.
    busy_share: Share = 0.5
    #: A worker without a load report counts as busy from this many requests in flight of this gateway.
    busy_in_flight: Count = 4


class Hedging:
    """The hedges of one model."""

    __slots__ = ("_budget", "_latency", "_random", "rules")

    def __init__(self, rules: HedgeRules, random: Random) -> None:
        self.rules = rules
        self._random = random
        self._latency = LatencyQuantile(rules.quantile)
        # No floor: without traffic there is no load to hedge against.
        self._budget = Budget(rules.ratio, 0.0, 10_000_000_000)

    def sent(self, count: int, now: int) -> None:
        """Count first attempts; hedges are a share of these."""
        self._budget.unbooked += count
        self._budget.book(now)

    def ended(self, latency_ns: int) -> None:
        """Record the latency of a request that succeeded, from its first attempt on."""
        self._latency.add(latency_ns)

    def delay_ns(self, kind: Kind, deadline: int, now: int) -> int | None:
        """How long to wait before the hedge; None: there will be none."""
        rules = self.rules
        if not rules.enabled or kind is not Kind.STATELESS or self._latency.count < rules.least_seen:
            return None
        delay = max(self._latency.value(), rules.least_delay_ns)
        return delay if now + delay < deadline else None

    def may_send(self, eligible: Sequence[Replica], second: Replica, now: int) -> bool:
        """Whether a hedge is sent to ``second`` now, after the delay. Takes it from the budget."""
        rules = self.rules
        if not rules.enabled or self._is_busy(second, now):
            return False
        count = len(eligible)
        sampled = min(count, _SAMPLE)
        start = self._random.randrange(count) if count else 0
        busy = sum(self._is_busy(eligible[(start + step) % count], now) for step in range(sampled))
        return busy <= rules.busy_share * sampled and self._budget.take(now)

    def _is_busy(self, replica: Replica, now: int) -> bool:
        if replica.endpoint.last_report_at > replica.reported_at:
            replica.take_report()
        if replica.reported_at and now - replica.reported_at <= FRESH_NS:
            return replica.report.queue > 0 or replica.sent_since > self.rules.busy_in_flight
        return replica.in_flight >= self.rules.busy_in_flight
