"""Edge, region or core: a request stays in the nearest tier that is expected to meet its deadline. Pure.

Asked before a worker is chosen, with what each tier is expected to take. A tier that was left comes back with
hysteresis: it must be well within the deadline, so that traffic does not swing to and fro with every word. It never
refuses: when no tier is in time, admission says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from isochrone.gateway.policies.base import NEVER
from isochrone.settings.ranges import Duration, Range

#: In place of an expectation: nobody serves the model there; or somebody does, without fresh word.
NOBODY = -1.0
UNKNOWN = 0.0


@dataclass(frozen=True, slots=True)
class TierRules:
    """Where a model may run, and when a request leaves the nearest place."""

    #: From the nearest to the farthest; empty: tiers do not matter. A list alone in the file means this.
    order: tuple[str, ...] = ()
    #: The way to a tier and back, beside what its workers say, by tier; not named: 0.
    way_ns: Mapping[str, Duration] = field(default_factory=dict)
    #: Kept free before the deadline.
    margin_ns: Duration = 200_000
    #: A tier that was left is used again when it is expected to take at most this share of the time there is.
    return_share: Annotated[float, Range(0.1, 1)] = 0.7
    #: It counts as left until it has missed nobody's deadline for so long.
    hold_ns: Duration = 500_000_000
    #: While it is left and silent, one request goes there so often, to bring news.
    probe_every_ns: Duration = 10_000_000


class Tiers:
    """The tiers of one model, as one gateway sees them."""

    __slots__ = ("_left", "_missed_at", "_probed_at", "_way", "names", "rules", "spilled")

    def __init__(self, rules: TierRules) -> None:
        self.rules = rules
        self.names = rules.order
        self._way = [rules.way_ns.get(name, 0) for name in rules.order]
        #: Whether requests were sent past a tier of late, when it last missed one, and when it was last tried.
        self._left = [False] * len(rules.order)
        self._missed_at = [0] * len(rules.order)
        self._probed_at = [-NEVER] * len(rules.order)
        #: Requests that went past the nearest tier that has workers.
        self.spilled = 0

    def choose(self, expected: Sequence[float], deadline: int, now: int) -> int:
        """The tier a request goes to, as an index into ``names``; -1: nobody serves it anywhere.

        ``expected``: per tier how long a request would take there, without the way, or ``NOBODY`` or ``UNKNOWN``.
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
            takes = run + self._way[index]
            if takes <= time:
                if not self._left[index] or self._is_back(index, takes, time, now):
                    return self._went(index, nearest, expected, time, now)
                # In time, but not by enough to come back: only if no other tier will do.
                if fitting < 0:
                    fitting = index
            if soonest < 0 or takes < least:
                soonest, least = index, takes
        return fitting if fitting >= 0 else soonest if soonest >= 0 else nearest

    def _may_probe(self, index: int, now: int) -> bool:
        if now - self._probed_at[index] < self.rules.probe_every_ns:
            return False
        self._probed_at[index] = now
        return True

    def _is_back(self, index: int, takes: float, time: int, now: int) -> bool:
        if takes > self.rules.return_share * time:
            return False
        if now - self._missed_at[index] >= self.rules.hold_ns:
            self._left[index] = False
        return True

    def _went(self, chosen: int, nearest: int, expected: Sequence[float], time: int, now: int) -> int:
        """Tiers that would have been late count as left, now that a farther one is used instead.

        A deadline that nobody can meet says nothing of a tier, so this is not done for those.
        """
        if chosen != nearest:
            self.spilled += 1
            for index in range(nearest, chosen):
                if expected[index] > 0 and expected[index] + self._way[index] > time:
                    self._left[index] = True
                    self._missed_at[index] = now
        return chosen
