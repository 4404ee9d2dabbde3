"""The link between two tiers, from measured exchanges. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.errors import InvalidArgument

#: Of the normal distribution: 99 % are below so many standard deviations above the mean.
_P99 = 2.33


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
        """99 % of exchanges are expected to take at most so long."""
        return self.seconds(sent_bytes, received_bytes) + _P99 * self.jitter


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
