"""The daily pattern of a pool's load, and what it says about the next minutes. Pure.

The day is divided into minutes. Each keeps the mean load that it had on past days, the latest day counting most. The
forecast is the highest load of the minutes until a new worker would serve, scaled by how this day compares with the
pattern so far. It matters only where it is well above the load of now: in the minutes before a rise that comes every
day. There it is also judged: it is used while its past errors are smaller than those of assuming that the load stays,
so that a load without a pattern gets no workers from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DAY = 86_400.0
_MINUTE = 60.0
_MINUTES = 1440
#: Weight of the latest day.
_DAY_GAIN = 0.5
#: Weight of one minute in the scale of this day: about the last half hour.
_SCALE_GAIN = 1 / 30
#: Weight of one minute in the errors: about the last day.
_ERROR_GAIN = 1 / _MINUTES
#: Minutes by which a day's rise may be early. One that is late is announced until its own time has passed.
_GUARD = 2
#: A forecast below this multiple of the usual load is no news.
_RISE = 1.25
#: Minutes that must be known: part of a day is no pattern.
_KNOWN_SHARE = 0.9


@dataclass(slots=True)
class _Forecast:
    """A forecast and the minute in which it ends."""

    end: int
    load: float
    usual: float
    #: Highest load of the minutes so far.
    highest: float = 0.0


class DailyForecast:
    """State of one pool."""

    def __init__(self, ahead_seconds: float) -> None:
        self._ahead = ahead_seconds
        self._pattern: list[float | None] = [None] * _MINUTES
        self._known = 0
        #: The minute being read: its number, the sum and the number of its readings.
        self._minute = -1
        self._sum, self._count = 0.0, 0
        self._scale = 1.0
        #: Mean load of the last minutes.
        self._usual = 0.0
        #: Sums of relative errors where the two differ: the forecast's, and those of a load that stays as it is.
        self._error, self._naive_error = 0.0, 0.0
        #: Forecasts that are compared with the highest load until their end.
        self._open: deque[_Forecast] = deque()
        self._minutes_read = 0

    @property
    def is_used(self) -> bool:
        """Whether the pattern predicts better than the load of now."""
        return self._known >= _KNOWN_SHARE * _MINUTES and self._error <= self._naive_error

    def ahead(self, time_of_day: float) -> float:
        """Load to be ready for; 0: the pattern has nothing to say."""
        if not self.is_used:
            return 0.0
        return self._rise(int(time_of_day % DAY // _MINUTE))

    def _rise(self, minute: int) -> float:
        last = minute + int(-(-self._ahead // _MINUTE)) + _GUARD
        known = [value for each in range(minute, last + 1) if (value := self._pattern[each % _MINUTES])]
        if not known:
            return 0.0
        load = max(known) * self._scale
        return load if load > _RISE * self._usual else 0.0

    def take(self, time_of_day: float, offered: float) -> None:
        """Learns from a reading. A minute is learned when the next one begins; a jump of the wall clock costs the
        minute in which it happened."""
        minute = int(time_of_day % DAY // _MINUTE)
        if minute != self._minute:
            if self._count and (minute - self._minute) % _MINUTES == 1:
                self._learn(self._minute, self._sum / self._count)
            self._minute, self._sum, self._count = minute, 0.0, 0
        self._sum += offered
        self._count += 1

    def _learn(self, minute: int, load: float) -> None:
        self._minutes_read += 1
        before = self._pattern[minute]
        self._judge(load)
        if before is None:
            self._pattern[minute] = load
            self._known += 1
        else:
            self._pattern[minute] = before + _DAY_GAIN * (load - before)
            if before > 0:
                self._scale += (min(3.0, load / before) - self._scale) * _SCALE_GAIN
        self._usual += (load - self._usual) * (0.5 if self._minutes_read > 1 else 1.0)
        if self._known >= _KNOWN_SHARE * _MINUTES and (rise := self._rise(minute)):
            end = self._minutes_read + int(-(-self._ahead // _MINUTE)) + 2 * _GUARD
            self._open.append(_Forecast(end, rise, self._usual))

    def _judge(self, load: float) -> None:
        self._error -= self._error * _ERROR_GAIN
        self._naive_error -= self._naive_error * _ERROR_GAIN
        for each in self._open:
            each.highest = max(each.highest, load)
        while self._open and self._open[0].end <= self._minutes_read:
            past = self._open.popleft()
            self._error += _relative_error(past.load, past.highest)
            self._naive_error += _relative_error(past.usual, past.highest)


def _relative_error(one: float, other: float) -> float:
    """From 0 to 1, whichever is the larger: workers that are missing and workers that are idle count alike."""
    larger = max(one, other)
    return abs(one - other) / larger if larger > 0 else 0.0
