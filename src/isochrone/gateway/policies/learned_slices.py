"""Is the learned policy worse than the heuristic? Two slices of the same traffic, told apart by lot, and a verdict.

Requests are given to a slice at random, so without a difference between the rules the slices differ by chance alone,
however the load moves. Worse means: a larger share of slow requests (slower than the p99 of both together) or of failed
ones, by more than chance explains and by more than a trifle. What it cannot see is harm to both slices alike. Pure.
"""

from __future__ import annotations

from math import sqrt

#: The two slices. A request of neither (a retry, a hedge) is NEITHER.
CONTROL, LEARNED, NEITHER = range(3)

#: Eight buckets per octave up to 2**42 ns: one is at most 12.5 % wide.
_FINE_BITS = 3
_BUCKETS = 43 << _FINE_BITS
#: Looked at after so many ends of the learned slice.
EVERY = 256
#: Nothing is said before the control slice has so many: with fewer, its p99 is one or two requests.
_FEWEST = 400
#: Counts are halved at this many, so that a change shows however long all went well.
_HALVE_AT = 40_000
#: Standard errors: so far chance alone goes once in 30,000 looks; there are four a thousand requests.
_SIGNIFICANT = 4.5
#: Differences below are no harm: of the p99, and of the share of failures.
_P99_FACTOR = 1.1
_FAILURES = 0.002
_QUANTILE = 0.99


class Slice:
    """Outcomes of one slice."""

    __slots__ = ("counts", "ended", "failed")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.ended = 0
        self.failed = 0

    @property
    def answered(self) -> int:
        return self.ended - self.failed

    def halve(self) -> None:
        self.counts = [count >> 1 for count in self.counts]
        self.failed >>= 1
        self.ended = sum(self.counts) + self.failed


class Slices:
    """Both, and whether the learned one is worse."""

    __slots__ = ("_until_look", "control", "learned")

    def __init__(self) -> None:
        self.control = Slice()
        self.learned = Slice()
        self._until_look = EVERY

    def ended(self, which: int, latency_ns: int, failed: bool) -> str:
        """A request of a slice is over. Returns why the learned slice is worse; "": it is not, or nothing is known."""
        if which == NEITHER:
            return ""
        one = self.learned if which == LEARNED else self.control
        one.ended += 1
        if failed:
            # Its latency says nothing: who fails fast must not look fast.
            one.failed += 1
        else:
            one.counts[_bucket(latency_ns)] += 1
        if which == LEARNED:
            self._until_look -= 1
            if not self._until_look:
                self._until_look = EVERY
                return self._look()
        return ""

    def _look(self) -> str:
        learned, control = self.learned, self.control
        if control.ended < _FEWEST:
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
        return f"{share:.2%} of its requests failed, {usual:.2%} of the control slice's"

    def _latency(self) -> str:
        learned, control = self.learned, self.control
        if not learned.answered or not control.answered:
            return ""
        both = [mine + theirs for mine, theirs in zip(learned.counts, control.counts, strict=True)]
        limit = _place(both, learned.answered + control.answered)
        slow, usual = sum(learned.counts[limit:]), sum(control.counts[limit:])
        if _errors(slow, learned.answered, usual, control.answered) < _SIGNIFICANT:
            return ""
        p99, control_p99 = self.p99_ns(LEARNED), self.p99_ns(CONTROL)
        if p99 <= control_p99 * _P99_FACTOR:
            return ""
        return f"its p99 is {p99 / 1e6:.3f} ms, the control slice's {control_p99 / 1e6:.3f} ms"

    def p99_ns(self, which: int) -> float:
        """Of one slice, on a straight line inside its bucket; 0 without answers."""
        one = self.learned if which == LEARNED else self.control
        if not one.answered:
            return 0.0
        bucket = _place(one.counts, one.answered)
        below = sum(one.counts[:bucket])
        low, high = _edge(bucket), _edge(bucket + 1)
        return low + (high - low) * (_QUANTILE * one.answered - below) / one.counts[bucket]


def _errors(slow: int, of: int, usual: int, of_usual: int) -> float:
    """How many standard errors lie between two shares."""
    together = (slow + usual) / (of + of_usual)
    variance = together * (1 - together) * (1 / of + 1 / of_usual)
    return (slow / of - usual / of_usual) / sqrt(variance) if variance > 0 else 0.0


def _place(counts: list[int], total: int) -> int:
    """The bucket that the p99 lies in."""
    passed, wanted = 0, _QUANTILE * total
    for bucket, count in enumerate(counts):
        passed += count
        if passed >= wanted and count:
            return bucket
    return len(counts) - 1


def _bucket(value: int) -> int:
    octave = value.bit_length()
    if octave <= _FINE_BITS:
        return value if value > 0 else 0
    bucket = ((octave - _FINE_BITS) << _FINE_BITS) + (value >> octave - _FINE_BITS - 1) - (1 << _FINE_BITS)
    return bucket if bucket < _BUCKETS else _BUCKETS - 1


def _edge(bucket: int) -> int:
    """The lowest value of a bucket."""
    fine = 1 << _FINE_BITS
    if bucket < fine:
        return bucket
    octave, rest = divmod(bucket, fine)
    return (fine + rest) << (octave - 1)
