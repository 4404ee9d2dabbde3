"""A queue with one server, computed: when each request would be answered if its service time and arrival are known.

Lindley's recursion. No clock, no socket, and no code of `isochrone bench`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def service_times_ns(seed: int, mean_ns: int, count: int) -> list[int]:
    """The service times of the first requests: exponentially distributed, the same for the same seed."""
    random = np.random.default_rng([seed, 5])
    return [max(1, round(each)) for each in random.exponential(mean_ns, count).tolist()]


def sojourn_times(arrivals: Sequence[int], services: Sequence[int]) -> list[int]:
    """From arrival to answer, of requests that one server answers in the order of their arrivals."""
    found: list[int] = []
    wait = 0
    for number, arrival in enumerate(arrivals):
        if number:
            wait = max(0, wait + services[number - 1] - (arrival - arrivals[number - 1]))
        found.append(wait + services[number])
    return found


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest value that ``percent`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100 - 1e-9) - 1)]
