"""The two statistical tests that judge a canary. Pure arithmetic, valid for small counts.

Each returns two p-values under the hypothesis that the canary is exactly as bad as allowed: one for being worse, one
for being better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from isochrone.gateway.evaluation.counts import bucket_bounds

#: Bisections of an interval until a share is known to 12 digits.
_HALVINGS = 40
#: Terms of a tail below this share of its sum are left out.
_NEGLIGIBLE = 1e-17


class Evidence(NamedTuple):
    """Small ``worse``: the canary is worse than allowed. Small ``not_worse``: it is better than allowed."""

    worse: float
    not_worse: float


# Failures.


def failure_evidence(
    canary_failures: int, canary_requests: int, stable_failures: int, stable_requests: int, margin: float
) -> Evidence:
    """Whether the canary's share of failures exceeds the stable version's by more than ``margin``.

    The signed root of the likelihood ratio of two binomials against "the shares differ by the margin", with a
    continuity correction of half a failure. Unlike the score test it is accurate in the far tail when failures are few.
    """
    if not canary_requests or not stable_requests:
        return Evidence(1.0, 1.0)
    worse = 1.0
    if canary_failures:
        root = _signed_root(canary_failures - 0.5, canary_requests, stable_failures, stable_requests, margin)
        worse = _upper_tail(root)
    doubtful = min(canary_failures + 0.5, canary_requests)
    not_worse = _upper_tail(-_signed_root(doubtful, canary_requests, stable_failures, stable_requests, margin))
    return Evidence(worse, not_worse)


def _signed_root(
    canary_failures: float, canary_requests: int, stable_failures: float, stable_requests: int, margin: float
) -> float:
    canary_share, stable_share = canary_failures / canary_requests, stable_failures / stable_requests
    # The most likely share of the stable version if the canary's is the margin above it: the slope is monotonic.
    low, high = 0.0, 1.0 - margin
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slope = _slope(stable_failures, stable_requests, middle)
        slope += _slope(canary_failures, canary_requests, middle + margin)
        low, high = (middle, high) if slope > 0 else (low, middle)
    free = _log_likelihood(stable_failures, stable_requests, stable_share)
    free += _log_likelihood(canary_failures, canary_requests, canary_share)
    bound = _log_likelihood(stable_failures, stable_requests, low)
    bound += _log_likelihood(canary_failures, canary_requests, low + margin)
    root = math.sqrt(max(0.0, 2 * (free - bound)))
    return root if canary_share - stable_share > margin else -root


def _slope(failures: float, requests: int, share: float) -> float:
    slope = failures / share if failures else 0.0
    rest = requests - failures
    return slope - rest / (1 - share) if rest and share < 1 else slope


def _log_likelihood(failures: float, requests: int, share: float) -> float:
    found = failures * math.log(share) if failures and share > 0 else (-math.inf if failures else 0.0)
    rest = requests - failures
    if rest:
        found += rest * math.log1p(-share) if share < 1 else -math.inf
    return found


def _upper_tail(deviate: float) -> float:
    """The upper tail of the normal distribution."""
    return math.erfc(deviate / math.sqrt(2)) / 2


# Latency.


def latency_evidence(canary: Mapping[int, int], stable: Mapping[int, int], quantile: float, ratio: float) -> Evidence:
    """Whether the canary's latencies at the quantile exceed the stable version's by more than the ratio.

    Mood's median test at a quantile: every latency of the stable version is multiplied by the ratio, both sets are
    merged, and those above the quantile of all are counted. If the canary were slower by exactly that ratio, the number
    of the canary's among them would be random: Fisher's exact (hypergeometric) test, for any distribution.
    """
    canary_total, stable_total = sum(canary.values()), sum(stable.values())
    total = canary_total + stable_total
    expected_above = (1 - quantile) * total
    # From above, over the edges of the canary's buckets, to the edge with nearly that number above it.
    scaled = _Above(stable, ratio)
    slower = 0
    best: tuple[float, int, int] | None = None
    for bucket in sorted(canary, reverse=True):
        low, high = bucket_bounds(bucket)
        for edge, more in ((high, 0), (low, canary[bucket])):
            slower += more
            above = slower + scaled.count(edge)
            distance = abs(above - expected_above)
            if 0 < above < total and (best is None or distance < best[0]):
                best = (distance, slower, above)
        if above > expected_above:
            break
    if best is None:
        return Evidence(1.0, 1.0)
    return Evidence(*hypergeometric_tails(best[1], best[2], canary_total, total))


class _Above:
    """Counts the latencies of a histogram, each multiplied by a ratio, above a latency. Call it with falling
    latencies."""

    def __init__(self, histogram: Mapping[int, int], ratio: float) -> None:
        self._ratio = ratio
        #: Buckets that are not entirely above yet, the highest last.
        self._rest = sorted(histogram.items())
        self._above = 0

    def count(self, latency: float) -> int:
        sought = latency / self._ratio
        rest = self._rest
        while rest:
            bucket, count = rest[-1]
            low, high = bucket_bounds(bucket)
            if high <= sought:
                break
            if low < sought:
                # Assumes a uniform distribution in the bucket.
                return self._above + round(count * (high - sought) / (high - low))
            self._above += count
            rest.pop()
        return self._above


def hypergeometric_tails(found: int, marked: int, drawn: int, total: int) -> tuple[float, float]:
    """Probabilities of at least, and of at most, ``found`` marked items in a draw of ``drawn`` out of ``total``."""
    lowest, highest = max(0, drawn - (total - marked)), min(marked, drawn)
    here = math.exp(_log_choose(marked, found) + _log_choose(total - marked, drawn - found) - _log_choose(total, drawn))
    upper = term = here
    for number in range(found, highest):
        term *= (marked - number) * (drawn - number) / ((number + 1) * (total - marked - drawn + number + 1))
        upper += term
        if term < upper * _NEGLIGIBLE:
            break
    lower = term = here
    for number in range(found, lowest, -1):
        term *= number * (total - marked - drawn + number) / ((marked - number + 1) * (drawn - number + 1))
        lower += term
        if term < lower * _NEGLIGIBLE:
            break
    return min(1.0, upper), min(1.0, lower)


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
