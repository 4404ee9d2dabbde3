"""Which requests are copied to a version that is only watched; its answers are thrown away. Pure.

Asked when a request is sent. Copies are bounded in number and bytes and never wait: what does not fit is not copied. A
copy must never delay, fail or change the request it was made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.settings.ranges import Count, Share


@dataclass(frozen=True, slots=True)
class ShadowRules:
    """What is copied, and where to."""

    #: Share of requests that are copied.
    share: Share = 0.0
    #: The model the copies go to; "": the same one, and then ``version`` must be set.
    model: str = ""
    #: Its version; "": what is served.
    version: str = ""
    #: Copies under way at once.
    max_in_flight: Count = 64
    #: Bytes of request bodies that copies may hold at once.
    max_in_flight_bytes: Count = 16 << 20


class Shadow:
    """The copies of one model's requests."""

    __slots__ = ("_random", "bytes", "copied", "in_flight", "left_out", "rules")

    def __init__(self, rules: ShadowRules, random: Random) -> None:
        self.rules = rules
        self._random = random
        self.in_flight = 0
        self.bytes = 0
        #: Copies made, and drawn ones that did not fit.
        self.copied = 0
        self.left_out = 0

    def take(self, kind: Kind, size: int) -> bool:
        """Whether this request of so many bytes is copied; ``ended`` must follow with the same size."""
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
        """A copy is over, well or not."""
        self.in_flight -= 1
        self.bytes -= size
