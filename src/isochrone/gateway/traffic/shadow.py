"""Shadow traffic: which requests are copied to a version whose answers are discarded. Pure.

Copies are bounded in number and bytes, and never wait: what does not fit is not copied. A copy must never delay, fail
or change the original request.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.settings.ranges import Count, Share


@dataclass(frozen=True, slots=True)
class ShadowRules:
    """Which requests are copied, and to which version."""

    #: Share of requests to copy.
    share: Share = 0.0
    #: The model that gets the copies; "": the same model, and ``version`` must be set.
    model: str = ""
    #: Its version; "": the version that is served.
    version: str = ""
    #: Limit of copies in flight.
    max_in_flight: Count = 64
    #: Limit of the bytes of their bodies.
    max_in_flight_bytes: Count = 16 << 20


class Shadow:
    """The copies of one model's requests."""

    __slots__ = ("_random", "bytes", "copied", "in_flight", "left_out", "rules")

    def __init__(self, rules: ShadowRules, random: Random) -> None:
        self.rules = rules
        self._random = random
        self.in_flight = 0
        self.bytes = 0
        #: Copies made, and copies left out because of a limit.
        self.copied = 0
        self.left_out = 0

    def take(self, kind: Kind, size: int) -> bool:
        """Whether to copy a request of ``size`` bytes. If so, the caller must call ``ended`` with the same size."""
        rules = self.rules
        if not rules.share or kind is not Kind.STATELESS or self._random.random() >= rules.share:
            return False
        if self.in_flight >= rules.max_in_flight or self.bytes + size > rules.max_in_flight_bytes:
            self.left_out += 1
            return False
        self.in_flight += 1
        self.bytes += size
        self.copied += 1
        return True

    def ended(self, size: int) -> None:
        """Count a copy that ended, with an answer or not."""
        self.in_flight -= 1
        self.bytes -= size
