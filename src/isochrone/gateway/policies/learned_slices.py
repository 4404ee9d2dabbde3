"""Is the learned policy worse than the heuristic? Two slices of the same traffic, told apart by lot, and a verdict.

Requests are given to a slice at random, so without a difference between the rules the slices differ by chance alone,
however the load moves. Worse means: a higher p99 or more failures, by more than chance explains and by more than a
trifle. What it cannot see is harm to both slices alike. Pure.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

#: The two slices. A request of neither (a retry, a hedge) is NEITHER.
CONTROL, LEARNED, NEITHER = range(3)

#: Buckets per octave, up to 2**42 ns: one is 9 % wide.
_FINE = 8
_BUCKETS = 42 * _FINE
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
        #: Latencies that are not in ``counts`` yet: put there in blocks, which costs a tenth of one at a time. Those of
        #: the learned slice, of which there are most, the policy appends itself: a call less.
        self.pending: list[int] = []
        self.counts = np.zeros(_BUCKETS, dtype=np.int64)
        self.answered = 0
        self.failed = 0

    @property
    def ended(self) -> int:
        return self.answered + self.failed

    def settle(self) -> None:
        """Puts what is pending into the counts."""
        if self.pending:
            octaves = np.log2(np.maximum(self.pending, 1))
            places = np.minimum((octaves * _FINE).astype(np.int64), _BUCKETS - 1)
            self.counts += np.bincount(places, minlength=_BUCKETS)
            self.answered += len(self.pending)
            self.pending.clear()

    def halve(self) -> None:
        self.counts >>= 1
        self.failed >>= 1
        self.answered = int(self.counts.sum())


class Slices:
    """Both, and whether the learned one is worse."""

    __slots__ = ("_until_look", "control", "learned")

    def __init__(self) -> None:
        self.control = Slice()
        self.learned = Slice()
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
            self._until_look -= 1
            if not self._until_look:
                self._until_look = EVERY
                return self._look()
        return ""

    def _look(self) -> str:
        learned, control = self.learned, self.control
        learned.settle()
        control.settle()
        if control.ended < _FEWEST or not learned.ended:
            return ""
        verdict = self._failures() or self._latency()
        if learned.ended >= _HALVE_AT:
            learned.halve()
            control.halve()
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
        both, total = learned.counts + control.counts, learned.answered + control.answered
        if not any(self._slower_than(_place(both, total, quantile)) for quantile in _TAILS):
            return ""
        p99, control_p99 = self.p99_ns(LEARNED), self.p99_ns(CONTROL)
        if p99 <= control_p99 * _P99_FACTOR:
            return ""
        return f"its p99 is {p99 / 1e6:.3f} ms, the control slice's {control_p99 / 1e6:.3f} ms"

    def _slower_than(self, limit: int) -> bool:
        """Whether a larger share of the learned slice lies in this bucket or above, by more than chance."""
        learned, control = self.learned, self.control
        slow, usual = int(learned.counts[limit:].sum()), int(control.counts[limit:].sum())
        return _errors(slow, learned.answered, usual, control.answered) >= _SIGNIFICANT

    def p99_ns(self, which: int) -> float:
        """Of one slice, on a straight line inside its bucket; 0 without answers."""
        one = self.learned if which == LEARNED else self.control
        one.settle()
        if not one.answered:
            return 0.0
        bucket = _place(one.counts, one.answered, _QUANTILE)
        below, inside = int(one.counts[:bucket].sum()), int(one.counts[bucket])
        return float(2 ** ((bucket + (_QUANTILE * one.answered - below) / inside) / _FINE))


def _errors(slow: int, of: int, usual: int, of_usual: int) -> float:
    """How many standard errors lie between two shares."""
    together = (slow + usual) / (of + of_usual)
    variance = together * (1 - together) * (1 / of + 1 / of_usual)
    return (slow / of - usual / of_usual) / sqrt(variance) if variance > 0 else 0.0


def _place(counts: Counts, total: int, quantile: float) -> int:
    """The bucket that a quantile lies in."""
    return int(np.searchsorted(np.cumsum(counts), quantile * total))
