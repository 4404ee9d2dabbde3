"""llm-d's workload variant autoscaler, with the HorizontalPodAutoscaler that acts on its metric.

Source: llm-d/llm-d-workload-variant-autoscaler, internal/saturation/analyzer.go and docs/saturation-scaling-config.md.
Constants:

- a decision every 15 s, on the highest values of the last minute (``max_over_time[1m]``);
- a worker is saturated at 0.8 of its cache, or at 5 queued requests; the others have spare capacity up to that;
- one more worker when the mean spare capacity is below 0.1 of the cache, or below 3 requests;
- one less when the load, redistributed over one worker less, leaves as much;
- no change while workers start.

The models here have no cache of keys and values. Its use is the share of the requests that a fully used worker has in
flight; queued requests are those beyond. All workers are equal to it, so the mean is one worker.
"""

from __future__ import annotations

from collections import deque

from isochrone.simulate.autoscaling.policies.base import Reading
from isochrone.simulate.autoscaling.policies.hpa import Behaviour

INTERVAL_SECONDS = 15
MAXIMUM_SECONDS = 60
CACHE_THRESHOLD, QUEUE_THRESHOLD = 0.8, 5.0
CACHE_SPARE, QUEUE_SPARE = 0.1, 3.0
#: The guide advises a stabilisation window of at least 120 s.
STABILISATION_SECONDS = 120


class LlmD:
    """``spare``: the cache that triggers an increase; a lower use of it is the peer of a lower target utilisation."""

    interval = INTERVAL_SECONDS
    window = INTERVAL_SECONDS

    def __init__(
        self, spare: float = CACHE_SPARE, threshold: float = CACHE_THRESHOLD, stabilisation: int = STABILISATION_SECONDS
    ) -> None:
        self.spare = spare
        self.threshold = threshold
        self._behaviour = Behaviour(stabilisation)
        count = MAXIMUM_SECONDS // INTERVAL_SECONDS
        self._caches: deque[float] = deque(maxlen=count)
        self._queues: deque[float] = deque(maxlen=count)

    def desired(self, reading: Reading) -> int:
        current = reading.ready + reading.pending
        if not reading.ready:
            return max(1, current)
        self._caches.append(min(1.0, reading.in_flight / reading.ready / reading.full_in_flight))
        self._queues.append(reading.queued / reading.ready)
        return self._behaviour.limit(reading.instant, current, self._target(reading))

    def _target(self, reading: Reading) -> int:
        if reading.pending:
            return reading.ready + reading.pending
        cache, queue = max(self._caches), max(self._queues)
        if cache >= self.threshold or queue >= QUEUE_THRESHOLD:
            # No worker is left that is not saturated: there is no spare capacity.
            return reading.ready + 1
        if self.threshold - cache < self.spare or QUEUE_THRESHOLD - queue < QUEUE_SPARE:
            return reading.ready + 1
        if reading.ready < 2:
            return reading.ready
        grown = reading.ready / (reading.ready - 1)
        is_safe = self.threshold - cache * grown >= self.spare and QUEUE_THRESHOLD - queue * grown >= QUEUE_SPARE
        return reading.ready - 1 if is_safe else reading.ready
