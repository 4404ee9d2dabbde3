"""The link between two tiers, from measured exchanges. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import Link as Link


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its small answer over the link."""

    sent_bytes: int
    seconds: float


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
