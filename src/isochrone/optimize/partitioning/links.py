"""The link between two tiers, from measured exchanges. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.errors import InvalidArgument

#: Standard deviations of the jitter that a late exchange is assumed to take longer. Were the times of a link normally
#: distributed, 99 % would be below; they have longer tails, and the median deviation ignores those.
_LATE_SIGMAS = 2.33


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its small answer over the link."""

    sent_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Link:
    """``round_trip`` and ``jitter`` in seconds: the median without a payload, and the spread around it (1 σ)."""

    round_trip: float
    bytes_per_second: float
    jitter: float = 0.0

    def seconds(self, sent_bytes: int, received_bytes: int) -> float:
        """The median of an exchange."""
        return self.round_trip + (sent_bytes + received_bytes) / self.bytes_per_second

    def late_seconds(self, sent_bytes: int, received_bytes: int) -> float:
        """The median and a margin for the jitter: an allowance, not a percentile."""
        return self.seconds(sent_bytes, received_bytes) + _LATE_SIGMAS * self.jitter


def link_of(exchanges: Sequence[Exchange]) -> Link:
    """From exchanges of at least two sizes, several of each.

    Medians, so that single delays do not count; the spread of the smallest is the jitter (by the median deviation).
    """
    sizes = sorted({each.sent_bytes for each in exchanges})
    if len(sizes) < 2:
        raise InvalidArgument("a link is measured by exchanges of at least two sizes")
    by_size = {size: [each.seconds for each in exchanges if each.sent_bytes == size] for size in sizes}
    small, large = sizes[0], sizes[-1]
    low, high = statistics.median(by_size[small]), statistics.median(by_size[large])
    per_byte = max(0.0, high - low) / (large - small)
    rate = 1 / per_byte if per_byte else math.inf
    deviation = statistics.median(abs(seconds - low) for seconds in by_size[small])
    # For a normal distribution, σ is 1.4826 median deviations.
    return Link(max(0.0, low - small * per_byte), rate, 1.4826 * deviation)
