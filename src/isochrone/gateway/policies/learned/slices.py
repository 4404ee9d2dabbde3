"""The comparison of the learned policy with Prequal: two random slices of the same traffic, and a verdict. Pure.

Requests are assigned to a slice at random, so if both rules are equally good the slices differ by chance alone, however
the load changes. The learned slice is worse if it has a higher p99 or more failures, by more than chance explains and
by a minimum difference. Harm to both slices alike is not detected. Counts and tails are updated with each ended
request: a comparison must cost no more than a microsecond or two, since it delays a request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, repeat
from math import sqrt

from isochrone.log_buckets import bucket_bounds, bucket_of

#: The two slices. Retries and hedges belong to NEITHER.
CONTROL, LEARNED, NEITHER = range(3)

#: Of latency buckets: each is 6 to 12 % wide. Latencies from 2**42 ns on share one bucket.
_BITS = 3
_BUCKETS = bucket_of((1 << 42) - 1, _BITS) + 1
#: The lowest latency of each bucket but the first: bisection over a list is faster than ``bucket_of`` per item.
_EDGES = [bucket_bounds(bucket, _BITS)[0] for bucket in range(1, _BUCKETS)]
#: The slices are compared after this many ended requests of the control slice, the smaller of the two.
EVERY = 32
#: There is no verdict before the control slice has this many: with fewer, its p99 is one or two requests.
_FEWEST = 400
#: Counts are halved at this many, so that a change shows also after a long good time.
_HALVE_AT = 100_000
#: Standard errors: chance alone exceeds this once in 30,000 comparisons; there are three per thousand requests.
_SIGNIFICANT = 4.0
#: Smaller differences do not count: of the p99, and of the share of failures.
_P99_FACTOR = 1.1
_FAILURES = 0.002
_QUANTILE = 0.99
#: The quantiles of both slices together at which the tails are compared. Five times as many requests are above the p95
#: as above the p99, so a difference shows there earlier.
_TAILS = (0.95, _QUANTILE)


class Slice:
    """Results of one slice."""

    __slots__ = ("answered", "counts", "failed", "pending")

    def __init__(self) -> None:
        #: Latencies that are not in ``counts`` yet. The policy appends those of the learned slice itself, which saves a
        #: call.
        self.pending: list[int] = []
        #: Answers by bucket of their latency.
        self.counts = [0] * _BUCKETS
        self.answered = 0
        self.failed = 0

    @property
    def ended(self) -> int:
        return self.answered + self.failed

    def settle(self, wide: int, narrow: int) -> tuple[int, int]:
        """Move pending latencies into the counts; how many are in each of two tails, given by their first bucket."""
        of_wide = of_narrow = 0
        pending, counts = self.pending, self.counts
        for bucket in map(bisect_right, repeat(_EDGES), pending):
            counts[bucket] += 1
            if bucket >= wide:
                of_wide += 1
                if bucket >= narrow:
                    of_narrow += 1
        self.answered += len(pending)
        pending.clear()
        return of_wide, of_narrow

    def halve(self) -> None:
        self.counts = [count >> 1 for count in self.counts]
        self.failed >>= 1
        self.answered = sum(self.counts)


class Tail:
    """The slowest requests of both slices together: those in the bucket of a quantile, and above."""

    __slots__ = ("control", "learned", "place", "quantile")

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self.place = 0
        #: Requests of each slice in the tail.
        self.control = self.learned = 0

    def move(self, learned: Slice, control: Slice) -> None:
        """Move the tail to where the quantile is now: seldom more than a bucket away."""
        total = learned.answered + control.answered
        below, limit = total - self.learned - self.control, self.quantile * total
        while below >= limit and self.place:
            self.place -= 1
            self.learned += learned.counts[self.place]
            self.control += control.counts[self.place]
            below = total - self.learned - self.control
        while (inside := learned.counts[self.place] + control.counts[self.place]) + below < limit:
            self.learned -= learned.counts[self.place]
            self.control -= control.counts[self.place]
            below += inside
            self.place += 1

    def recount(self, learned: Slice, control: Slice) -> None:
        """Count again, after the counts were halved."""
        self.learned, self.control = sum(learned.counts[self.place :]), sum(control.counts[self.place :])


class Slices:
    """Both slices, and the verdict whether the learned one is worse."""

    __slots__ = ("_tails", "_until_comparison", "control", "learned")

    def __init__(self) -> None:
        self.control = Slice()
        self.learned = Slice()
        self._tails = [Tail(quantile) for quantile in _TAILS]
        self._until_comparison = EVERY

    def ended(self, which: int, latency_ns: int, failed: bool) -> str:
        """Count an ended request of a slice. A request that was given up has failed.

        Returns why the learned slice is worse; "": it is not, or there is no verdict yet.
        """
        one = self.learned if which == LEARNED else self.control
        if failed:
            # Its latency does not count: failing fast must not look fast.
            one.failed += 1
        else:
            one.pending.append(latency_ns)
        if which == CONTROL:
            # About ten at a time: cheaper than one by one, and too few to delay a request noticeably.
            self.settle()
            self._until_comparison -= 1
            if not self._until_comparison:
                self._until_comparison = EVERY
                return self._compare()
        return ""

    def settle(self) -> None:
        """Move pending latencies into the counts. The policy calls it when a probe's answer arrives, since that delays
        no request."""
        wide, narrow = self._tails
        of_wide, of_narrow = self.learned.settle(wide.place, narrow.place)
        wide.learned += of_wide
        narrow.learned += of_narrow
        of_wide, of_narrow = self.control.settle(wide.place, narrow.place)
        wide.control += of_wide
        narrow.control += of_narrow

    def _compare(self) -> str:
        learned, control = self.learned, self.control
        if control.ended < _FEWEST or not learned.ended:
            return ""
        verdict = self._failures() or self._latency()
        if learned.ended >= _HALVE_AT:
            learned.halve()
            control.halve()
            for tail in self._tails:
                tail.recount(learned, control)
        return verdict

    def _failures(self) -> str:
        learned, control = self.learned, self.control
        share, usual = learned.failed / learned.ended, control.failed / control.ended
        apart = _errors(learned.failed, learned.ended, control.failed, control.ended)
        if share <= usual + _FAILURES or apart < _SIGNIFICANT:
            return ""
        return f"{share:.2%} of its requests failed or were given up, {usual:.2%} of the control slice's"

    def _latency(self) -> str:
        learned, control = self.learned, self.control
        if not learned.answered or not control.answered:
            return ""
        slower = False
        for tail in self._tails:
            tail.move(learned, control)
            apart = _errors(tail.learned, learned.answered, tail.control, control.answered)
            slower = slower or apart >= _SIGNIFICANT
        if not slower:
            return ""
        p99, control_p99 = self.p99_ns(LEARNED), self.p99_ns(CONTROL)
        if p99 <= control_p99 * _P99_FACTOR:
            return ""
        return f"its p99 is {p99 / 1e6:.3f} ms, the control slice's {control_p99 / 1e6:.3f} ms"

    def p99_ns(self, which: int) -> float:
        """The p99 of one slice, interpolated in its bucket; 0 without answers."""
        self.settle()
        one = self.learned if which == LEARNED else self.control
        if not one.answered:
            return 0.0
        limit = _QUANTILE * one.answered
        below = list(accumulate(one.counts))
        bucket = bisect_left(below, limit)
        inside = one.counts[bucket]
        low, high = bucket_bounds(bucket, _BITS)
        return low + (high - low) * (limit - (below[bucket] - inside)) / inside


def _errors(slow: int, of: int, usual: int, of_usual: int) -> float:
    """The difference of two shares in standard errors."""
    together = (slow + usual) / (of + of_usual)
    variance = together * (1 - together) * (1 / of + 1 / of_usual)
    return (slow / of - usual / of_usual) / sqrt(variance) if variance > 0 else 0.0
