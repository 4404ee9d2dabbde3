"""The two statistical tests a canary is judged by. Pure arithmetic, true for small counts as well.

Both answer two questions with a p-value each: how surprising would these counts be if the canary were just as bad as
is allowed, looked at from above (it is worse) and from below (it is not worse)?
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from isochrone.gateway.trials import bucket_bounds

#: Halvings of an interval until a share is known to 12 digits.
_HALVINGS = 40
#: Terms of a tail below this share of its sum are left out.
_NEGLIGIBLE = 1e-17


class Evidence(NamedTuple):
    """Small ``worse``: the canary is worse than allowed. Small ``not_worse``: it is better than that."""

    worse: float
    not_worse: float


# Failures.


def failure_evidence(
    canary_failures: int, canary_requests: int, stable_failures: int, stable_requests: int, margin: float
) -> Evidence:
    """Whether the canary's share of failures exceeds the stable version's by more than ``margin``.

    The signed root of the likelihood ratio of two binomials against "the shares differ by the margin", with half a
    failure given to the doubt. Unlike the score test it stays true far out in the tail when failures are few.
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
    # The likeliest share of the stable version if the canary's is this margin above: the slope falls all the way.
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
    """Of the normal distribution."""
    return math.erfc(deviate / math.sqrt(2)) / 2


# Latency.


def latency_evidence(canary: Mapping[int, int], stable: Mapping[int, int], quantile: float, ratio: float) -> Evidence:
    """Whether the canary's latencies at the quantile exceed the stable version's by more than the ratio.

    Mood's median test, at a quantile: every latency of the stable version is multiplied by the ratio, the two are put
    together, and those above the quantile of all are counted. If the canary were slower by just that ratio, which of
    them are the canary's would be chance alone: Fisher's exact (hypergeometric) test, for any distribution.
    """
    canary_total, stable_total = sum(canary.values()), sum(stable.values())
    total = canary_total + stable_total
    wanted = (1 - quantile) * total
    # From above, over the edges of the canary's buckets, to the one that leaves just about the share wanted above it.
    scaled = _Above(stable, ratio)
    slower = 0
    best: tuple[float, int, int] | None = None
    for bucket in sorted(canary, reverse=True):
        low, high = bucket_bounds(bucket)
        for edge, more in ((high, 0), (low, canary[bucket])):
            slower += more
            above = slower + scaled.count(edge)
            distance = abs(above - wanted)
            if 0 < above < total and (best is None or distance < best[0]):
                best = (distance, slower, above)
        if above > wanted:
            break
    if best is None:
        return Evidence(1.0, 1.0)
    return Evidence(*hypergeometric_tails(best[1], best[2], canary_total, total))


class _Above:
    """How many of a histogram's latencies, each multiplied by a ratio, lie above a latency. Asked from above down."""

    def __init__(self, histogram: Mapping[int, int], ratio: float) -> None:
        self._ratio = ratio
        #: Buckets that are not wholly above yet, the highest last.
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
                # Spread evenly over the bucket.
                return self._above + round(count * (high - sought) / (high - low))
            self._above += count
            rest.pop()
        return self._above


def hypergeometric_tails(found: int, marked: int, drawn: int, total: int) -> tuple[float, float]:
    """Chances of at least, and of at most, ``found`` marked ones in a draw of ``drawn`` out of ``total``."""
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
