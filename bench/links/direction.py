"""When a packet arrives at the other end of one direction of a link. Pure.

A packet waits until those before it have been sent, takes its bytes over the bandwidth to be sent, and then the delay.
One that finds the queue full is dropped, as routers do it: TCP finds its rate by that.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.links.settings import LinkSettings


class Direction:
    def __init__(self, random: Callable[[], float]) -> None:
        """``random``: from 0 to 1."""
        self._random = random
        #: When the last packet has been sent, and when it arrives.
        self._free_at = 0.0
        self._last_arrival = 0.0

    def arrival(self, now: float, size: int, settings: LinkSettings) -> float | None:
        """None: dropped. Packets that wait while the settings change keep their times."""
        begins = max(now, self._free_at)
        rate = settings.bits_per_second / 8
        if begins > now and (begins - now) * rate + size > settings.queue_bytes:
            return None
        self._free_at = begins + size / rate
        late = settings.jitter * self._random() if settings.jitter else 0.0
        self._last_arrival = max(self._last_arrival, self._free_at + settings.delay + late)
        return self._last_arrival
