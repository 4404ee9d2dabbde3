"""The link between two tiers, from measured exchanges. Pure.

Bytes do not cross at one rate: a few go out at once, many wait for TCP's window, and a link with a long round trip and
much bandwidth is far from a line between two sizes. So the time of each size that was measured is kept, and others lie
between their neighbours.
"""

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
    medians = [statistics.median(by_size[size]) for size in sizes]
    # More bytes are never sooner there: where they seem to be, something else delayed the fewer ones.
    times = [min(medians[place:]) for place in range(len(sizes))]
    small, large, low = sizes[0], sizes[-1], times[0]
    per_byte = (times[-1] - low) / (large - small)
    rate = 1 / per_byte if per_byte else math.inf
    deviation = statistics.median(abs(seconds - medians[0]) for seconds in by_size[small])
    # The smallest ones have next to no payload: the next size tells what their bytes took.
    first = (times[1] - low) / (sizes[1] - small)
    # For a normal distribution, σ is 1.4826 median deviations.
    points = tuple(zip(sizes, times, strict=True))
    return Link(max(0.0, low - small * first), rate, 1.4826 * deviation, points)
