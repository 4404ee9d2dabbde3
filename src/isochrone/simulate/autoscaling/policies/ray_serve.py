"""Ray Serve's default autoscaling policy.

Source: python/ray/serve/autoscaling_policy.py and config.py of Ray 2.57. Constants:

- requests in flight, queued ones included, are recorded every 10 s and averaged over 30 s;
- desired = running × total / (target × running); then ceil(running + factor × (desired − running)), factor 1;
- up once that was wanted for 30 s without a break, to what is wanted last (issue 46497); down likewise after 600 s;
- from none to one at once.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from isochrone.simulate.autoscaling.policies.base import Reading

METRICS_SECONDS = 10
LOOK_BACK_SECONDS = 30
UPSCALE_DELAY_SECONDS = 30
DOWNSCALE_DELAY_SECONDS = 600


class RayServe:
    """``target``: share of what one fully used worker has in flight (``target_ongoing_requests``)."""

    interval = METRICS_SECONDS
    window = METRICS_SECONDS

    def __init__(
        self,
        target: float,
        upscale_delay: int = UPSCALE_DELAY_SECONDS,
        downscale_delay: int = DOWNSCALE_DELAY_SECONDS,
    ) -> None:
        self.target = target
        self._delays = {1: upscale_delay, -1: downscale_delay}
        self._in_flight: deque[float] = deque(maxlen=LOOK_BACK_SECONDS // METRICS_SECONDS)
        #: The direction that is wanted, and since when.
        self._direction, self._since = 0, 0

    def desired(self, reading: Reading) -> int:
        self._in_flight.append(reading.in_flight)
        total = sum(self._in_flight) / len(self._in_flight)
        current = reading.ready + reading.pending
        if not reading.ready:
            return max(current, 1) if total > 0 else current
        wanted = ceil(total / (self.target * reading.full_in_flight) - 1e-9)
        direction = (wanted > current) - (wanted < current)
        if direction != self._direction:
            self._direction, self._since = direction, reading.instant
        if not direction or reading.instant - self._since < self._delays[direction]:
            return current
        self._direction = 0
        # Only the last worker may make the pool empty, and pools here keep one.
        return max(1, wanted)
