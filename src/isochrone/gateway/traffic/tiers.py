"""Tiers (edge, region, core): a request goes to the nearest tier that is expected to meet its deadline. Pure.

The tier is chosen before the worker, by the expected latency of each tier. A tier that was left is used again only when
it is well within the deadline, so that traffic does not oscillate with every load report. Tiers never reject a request:
if no tier is in time, admission does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from isochrone.gateway.traffic.left_options import LeftOptions
from isochrone.settings.ranges import Duration, Range

#: Instead of an expected latency: no worker serves the model there; or no worker there has a fresh load report.
NOBODY = -1.0
UNKNOWN = 0.0


@dataclass(frozen=True, slots=True)
class TierRules:
    """Where a model may run, and when a request leaves the nearest tier."""

    #: From the nearest to the farthest; empty: tiers are not used. In a rules file, a bare list is this.
    order: tuple[str, ...] = ()
    #: Network round trip by tier, in addition to its workers' estimates; not named: 0.
    way_ns: Mapping[str, Duration] = field(default_factory=dict)
    #: Safety margin before the deadline.
    margin_ns: Duration = 200_000
    #: A tier that was left is used again when its expected latency is at most this share of the remaining time.
    return_share: Annotated[float, Range(0.1, 1)] = 0.7
    #: It counts as left until it would have missed no deadline for this long.
    hold_ns: Duration = 500_000_000
    #: While it is left and has no load reports, one request is sent there at this interval.
    probe_every_ns: Duration = 10_000_000


class Tiers(LeftOptions):
    """The tiers of one model on one gateway."""

    __slots__ = ("names", "rules", "spilled", "way_ns")

    def __init__(self, rules: TierRules) -> None:
        super().__init__(len(rules.order), rules)
        self.rules = rules
        self.names = rules.order
        #: Network round trips, by tier.
        self.way_ns = [rules.way_ns.get(name, 0) for name in rules.order]
        #: Requests sent past the nearest tier that has workers.
        self.spilled = 0

    def way_of(self, tier: str) -> int:
        """The network round trip to a tier; 0: it is not known."""
        return self.rules.way_ns.get(tier, 0)

    def choose(self, expected: Sequence[float], deadline: int, now: int) -> int:
        """The tier for a request, as an index into ``names``; -1: no worker serves it in any tier.

        ``expected``: by tier the latency without the round trip, or ``NOBODY`` or ``UNKNOWN``.
        """
        time = deadline - now - self.rules.margin_ns
        nearest = fitting = soonest = -1
        least = 0.0
        for index, run in enumerate(expected):
            if run == NOBODY:
                continue
            if nearest < 0:
                nearest = index
            if run == UNKNOWN:
                if not self._left[index] or self._may_probe(index, now):
                    return self._went(index, nearest, expected, time, now)
                continue
            takes = run + self.way_ns[index]
            if takes <= time:
                if self._is_used(index, takes, time, now):
                    return self._went(index, nearest, expected, time, now)
                # In time, but not by enough to be used again: only if no other tier is in time.
                if fitting < 0:
                    fitting = index
            if soonest < 0 or takes < least:
                soonest, least = index, takes
        return fitting if fitting >= 0 else soonest if soonest >= 0 else nearest

    def _went(self, chosen: int, nearest: int, expected: Sequence[float], time: int, now: int) -> int:
        """Mark the nearer tiers that would have been late as left, since a farther one is used instead.

        A deadline that no tier can meet says nothing about a tier, and does not get here.
        """
        if chosen != nearest:
            self.spilled += 1
            for index in range(nearest, chosen):
                if expected[index] > 0 and expected[index] + self.way_ns[index] > time:
                    self._leave(index, now)
        return chosen
