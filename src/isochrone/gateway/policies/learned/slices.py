"""Is the learned policy worse than the heuristic? Two slices of the same traffic, told apart by lot, and a verdict.

Requests are given to a slice at random, so without a difference between the rules the slices differ by chance alone,
however the load moves. Worse means: a higher p99 or more failures, by more than chance explains and by more than a
trifle. What it cannot see is harm to both slices alike. Pure. Counts are kept up to date end by end, with the tails
beside them: a look has to cost no more than a microsecond or two, for some request waits for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, repeat
from math import sqrt

from isochrone.log_buckets import bucket_bounds, bucket_of

#: The two slices. A request of neither (a retry, a hedge) is NEITHER.
CONTROL, LEARNED, NEITHER = range(3)

#: Of latency buckets: each is 6 to 12 % wide. Latencies from 2**42 ns on are one.
_BITS = 3
_BUCKETS = bucket_of((1 << 42) - 1, _BITS) + 1
#: The lowest latency of each bucket but the first: counting a list by bisection is quicker than by ``bucket_of``.
_EDGES = [bucket_bounds(bucket, _BITS)[0] for bucket in range(1, _BUCKETS)]
#: Looked at after so many ends of the control slice, the smaller of the two.
EVERY = 32
#: Nothing is said before the control slice has so many: with fewer, its p99 is one or two requests.
_FEWEST = 400
#: Counts are halved at this many, so that a change shows however long all went well.
_HALVE_AT = 100_000
#: Standard errors: so far chance alone goes once in 30,000 looks; there are three a thousand requests.
_SIGNIFICANT = 4.0
#: Differences below are no harm: of the p99, and of the share of failures.
_P99_FACTOR = 1.1
_FAILURES = 0.002
_QUANTILE = 0.99
#: Where the tails are compared, as quantiles of both slices together: five times as many requests lie above the p95 as
#: above the p99, so that a difference of the tails shows sooner there.
_TAILS = (0.95, _QUANTILE)


class Slice:
    """Outcomes of one slice."""

    __slots__ = ("answered", "counts", "failed", "pending")

    def __init__(self) -> None:
        #: Latencies that are not in ``counts`` yet. Those of the learned slice, of which there are most, the policy
        #: appends itself: a call less.
        self.pending: list[int] = []
        #: Answers by bucket of their latency.
        self.counts = [0] * _BUCKETS
        self.answered = 0
        self.failed = 0

    @property
    def ended(self) -> int:
        return self.answered + self.failed

    def settle(self, wide: int, narrow: int) -> tuple[int, int]:
        """Puts what is pending into the counts; how many of those lie in either of two tails, by their first bucket."""
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
    """The slowest of both slices together: those in the bucket that a quantile lies in, and above."""

    __slots__ = ("control", "learned", "place", "quantile")

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self.place = 0
        #: How many of each slice are in it.
        self.control = self.learned = 0

    def move(self, learned: Slice, control: Slice) -> None:
        """To where the quantile lies now: seldom more than a bucket from where it lay."""
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
        """After a change of the counts as a whole."""
        self.learned, self.control = sum(learned.counts[self.place :]), sum(control.counts[self.place :])


class Slices:
    """Both, and whether the learned one is worse."""

    __slots__ = ("_tails", "_until_look", "control", "learned")

    def __init__(self) -> None:
        self.control = Slice()
        self.learned = Slice()
        self._tails = [Tail(quantile) for quantile in _TAILS]
        self._until_look = EVERY

    def ended(self, which: int, latency_ns: int, failed: bool) -> str:
        """A request of a slice is over; one that was given up has failed.

        Returns why the learned slice is worse; "": it is not, or nothing is known.
        """
        one = self.learned if which == LEARNED else self.control
        if failed:
            # Its latency says nothing: who fails fast must not look fast.
            one.failed += 1
        else:
            one.pending.append(latency_ns)
        if which == CONTROL:
            # Some ten at a time: cheaper than one by one, and too few to be felt.
            self.settle()
            self._until_look -= 1
            if not self._until_look:
                self._until_look = EVERY
                return self._look()
        return ""

    def settle(self) -> None:
        """Puts what is pending into the counts. The shell's own time is better for it than a request's: the policy
        calls it when a probe's answer came."""
        wide, narrow = self._tails
        of_wide, of_narrow = self.learned.settle(wide.place, narrow.place)
        wide.learned += of_wide
        narrow.learned += of_narrow
        of_wide, of_narrow = self.control.settle(wide.place, narrow.place)
        wide.control += of_wide
        narrow.control += of_narrow

    def _look(self) -> str:
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
        """Of one slice, on a straight line inside its bucket; 0 without answers."""
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
    """How many standard errors lie between two shares."""
    together = (slow + usual) / (of + of_usual)
    variance = together * (1 - together) * (1 / of + 1 / of_usual)
    return (slow / of - usual / of_usual) / sqrt(variance) if variance > 0 else 0.0
