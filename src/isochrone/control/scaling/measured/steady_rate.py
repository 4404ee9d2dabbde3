"""One model's rate of requests that noise does not change: an estimate that holds until readings contradict it. Pure.

Requests come at random, so a mean over few of them says little: at 5 requests per second, means over 5 s vary by 20 %.
The estimate is replaced only by a mean that it could hardly have led to. A rate that rises counts within a few seconds,
if the number of requests proves it. One that falls counts after two minutes in which no mean has reached the estimate:
replicas that are given back cost a load when the rate rises again, and many callers send in bursts.
"""

from __future__ import annotations

from math import exp, sqrt

#: Means of the last readings, whose weight falls to 1/e in so many seconds.
_FADES = (2.5, 10.0, 40.0, 120.0)
#: A mean contradicts the estimate if it differs by so many standard deviations of a Poisson process. With readings
#: every 2 s, a constant load does that less than once in an hour.
_DEVIATIONS = 4.0
#: And by at least this part of the estimate, upwards and downwards.
_RISE, _FALL = 0.05, 0.1
#: Seconds in which nothing has reached the estimate before it falls.
_HELD = 120.0
#: Seconds of readings for the first estimate; of a model without replicas that could be given back for it, as soon as
#: there were so many requests in so many seconds.
_FIRST = 60.0
_ENOUGH_REQUESTS, _ENOUGH_SECONDS = 20.0, 4.0


class SteadyRate:
    """Of one model. ``value``: requests per second, as known before; None: not known."""

    __slots__ = ("_means", "_observed", "_unreached", "value")

    def __init__(self, value: float | None = None) -> None:
        self.value = value
        #: By fade: the mean, as if there had been no requests before the first reading.
        self._means = [0.0] * len(_FADES)
        self._observed = 0.0
        #: Seconds since a mean has last reached the estimate.
        self._unreached = 0.0

    def take(self, rate: float, elapsed: float, *, is_single: bool) -> None:
        """Requests per second in the last ``elapsed`` seconds. ``is_single``: no replica could be given back."""
        self._observed += elapsed
        if not rate and not any(self._means):
            means = [0.0] * len(_FADES)
        else:
            faded = [exp(-elapsed / fade) for fade in _FADES]
            self._means = [mean * part + rate * (1 - part) for mean, part in zip(self._means, faded, strict=True)]
            means = [mean / (1 - exp(-self._observed / fade)) for mean, fade in zip(self._means, _FADES, strict=True)]
        if self.value is None:
            is_enough = self._observed >= _ENOUGH_SECONDS and means[-1] * self._observed >= _ENOUGH_REQUESTS
            if self._observed >= _FIRST or (is_single and is_enough):
                self.value = means[-1]
            return
        higher = [mean for mean, fade in zip(means, _FADES, strict=True) if self._is_above(mean, fade)]
        is_below = not higher and self._is_below(max(means))
        self._unreached = self._unreached + elapsed if is_below else 0.0
        if higher:
            self.value = max(higher)
        elif self._unreached >= _HELD:
            self.value, self._unreached = max(means), 0.0

    def _is_above(self, mean: float, fade: float) -> bool:
        before = self.value or 0.0
        return mean - before > max(_RISE * before, self._noise(max(mean, before), fade))

    def _is_below(self, mean: float) -> bool:
        before = self.value or 0.0
        return before - mean > max(_FALL * before, self._noise(before, _FADES[-1]))

    def _noise(self, rate: float, fade: float) -> float:
        past = exp(-self._observed / fade)
        return _DEVIATIONS * sqrt(rate * (1 + past) / (2 * fade * (1 - past)))
