"""The load a start-up time ahead, from the last minutes of readings, and the margin that past errors ask for. Pure.

A worker that is started now serves a start-up time later. The load expected then is the mean of the last two readings
plus its rise, as far as the rise stands out from the noise. Rises are looked for in the whole window and in its last
quarter: the one is surer, the other sooner. How far loads were from such expectations before is the margin: a calm load
needs little, a noisy one much, and nobody has to set a target utilisation.

No method that answers changes what was learned: ``take`` does, after the decision. So a higher reading never leads to
a lower answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

#: Readings whose mean is the load of now. The mean of a minute hides the peaks that overflow a pool: at equal
#: worker-hours of the noisy days of tuning it has 1.5 times the violations. A single reading may be an outlier.
_LEVEL_READINGS = 2
#: Readings that make a line.
_LINE_READINGS = 5
#: A slope below this many times its usual size is noise.
_SIGNIFICANT = 4.5
#: The same while the load rises already.
_STILL_SIGNIFICANT = 2.0
#: A rise is extrapolated to at most this multiple of the load of now.
_MOST_RISE = 4.0
#: Weight of one reading in errors and slopes: with a reading every five seconds, about the last half hour.
_GAIN = 1 / 360
#: An error counts at most with this many deviations: one unforeseen event must not keep a pool too large for hours.
_MOST_DEVIATIONS = 3.0
#: Deviation of errors and slope per second before anything is learned, relative to the load.
_FIRST_DEVIATION = 0.1
_FIRST_SLOPE = 0.002


class Expectation(NamedTuple):
    """``load`` is expected a start-up time ahead, ``level`` is the load of now."""

    level: float
    load: float
    is_rising: bool = False
    #: Relative slopes of the whole window and of its last quarter; 0: too few readings.
    slopes: tuple[float, float] = (0.0, 0.0)


class _Line(NamedTuple):
    mean: float
    #: From the mean's instant to the newest reading, in seconds.
    reach: float
    slope: float


class LoadPrediction:
    """State of one pool."""

    __slots__ = ("_ahead", "_due", "_instants", "_is_rising", "_rates", "_usual_slopes", "_variance", "_window")

    def __init__(self, ahead_seconds: float, window_seconds: float) -> None:
        self._ahead = ahead_seconds
        self._window = window_seconds
        #: The readings of the window.
        self._instants: list[float] = []
        self._rates: list[float] = []
        #: Whether the last reading showed a rise.
        self._is_rising = False
        #: Root mean squares of both slopes.
        self._usual_slopes = [_FIRST_SLOPE, 2 * _FIRST_SLOPE]
        #: Expectations to be compared with the load: the instant that each is for, and the load.
        self._due: deque[tuple[float, float]] = deque()
        #: Mean square of errors, relative to the expectation.
        self._variance = _FIRST_DEVIATION**2

    @property
    def deviation(self) -> float:
        """Standard deviation of loads from what was expected, relative to it."""
        return sqrt(self._variance)

    def forget(self) -> None:
        """Discards the readings, whose instants are worthless after a jump of the clock; what was learned stays."""
        self._instants.clear()
        self._rates.clear()
        self._due.clear()
        self._is_rising = False

    def expect(self, instant: float, offered: float) -> Expectation:
        """What follows from the readings, ``offered`` being the newest."""
        instants, rates = [*self._instants, instant], [*self._rates, offered]
        level = sum(rates[-_LEVEL_READINGS:]) / len(rates[-_LEVEL_READINGS:])
        if len(rates) < _LINE_READINGS:
            return Expectation(level, level)
        recent = max(_LINE_READINGS, len(rates) // 4)
        lines = (_line(instants, rates), _line(instants[-recent:], rates[-recent:]))
        # Relative to the readings before, so that an outlier does not vouch for itself.
        before = sum(self._rates) / len(self._rates)
        load = level
        significant = _SIGNIFICANT if not self._is_rising else _STILL_SIGNIFICANT
        is_rising = False
        for line, usual in zip(lines, self._usual_slopes, strict=True):
            if line.slope > significant * usual * before:
                load = max(load, line.mean + line.slope * (line.reach + self._ahead))
                is_rising = True
        load = min(load, _MOST_RISE * level)
        if before <= 0:
            return Expectation(level, load)
        return Expectation(level, load, is_rising, (lines[0].slope / before, lines[1].slope / before))

    def take(self, instant: float, offered: float, expectation: Expectation) -> None:
        """Learns from a reading, for which ``expect`` gave the slopes; its load may have been raised since."""
        self._is_rising = expectation.is_rising
        for index, slope in enumerate(expectation.slopes):
            if slope:
                usual = self._usual_slopes[index]
                size = min(abs(slope), _MOST_DEVIATIONS * usual + 1e-5)
                self._usual_slopes[index] = sqrt(usual * usual + (size * size - usual * usual) * _GAIN)
        self._instants.append(instant)
        self._rates.append(offered)
        if self._instants[0] < instant - self._window:
            kept = next(number for number, at in enumerate(self._instants) if at >= instant - self._window)
            del self._instants[:kept], self._rates[:kept]
        due = self._due
        due.append((instant + self._ahead, expectation.load))
        while due[0][0] <= instant:
            self._compare(due.popleft()[1], offered)

    def _compare(self, expected: float, offered: float) -> None:
        if expected > 0:
            most = _MOST_DEVIATIONS * self.deviation + 0.01
            error = min(most, abs(offered - expected) / expected)
            self._variance += (error * error - self._variance) * _GAIN


def _line(instants: Sequence[float], rates: Sequence[float]) -> _Line:
    """The straight line of least squares."""
    count = len(rates)
    middle = sum(instants) / count
    mean = sum(rates) / count
    spread = along = 0.0
    for instant, rate in zip(instants, rates, strict=True):
        away = instant - middle
        spread += away * away
        along += away * rate
    return _Line(mean, instants[-1] - middle, along / spread)
