"""A limit on how many failures per second are recorded. Pure: no clock.

Under overload nearly every request fails: a record of each would cost most when there is least to spare.
"""

from __future__ import annotations

from typing import Final

from isochrone.clock import SECOND

#: Seconds of the rate that may come at once.
_BURST_SECONDS: Final = 10


class FailureLimit:
    """A token bucket: ``per_second`` on average, ten times as many at once."""

    __slots__ = ("_filled_at", "_most", "_per_second", "_tokens", "dropped")

    def __init__(self, per_second: int, now: int) -> None:
        self._per_second = per_second
        self._most = self._tokens = float(per_second * _BURST_SECONDS)
        self._filled_at = now
        #: Failures that were not recorded.
        self.dropped = 0

    def takes(self, now: int) -> bool:
        """Whether a failure may be recorded; counts those that may not."""
        if self._tokens < 1.0:
            self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self._per_second / SECOND)
            self._filled_at = now
            if self._tokens < 1.0:
                self.dropped += 1
                return False
        self._tokens -= 1.0
        return True
