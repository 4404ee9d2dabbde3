"""Kubernetes' HorizontalPodAutoscaler, autoscaling/v2.

Sources: kubernetes.io, "Horizontal Pod Autoscaling" (algorithm, stabilisation window, default behaviour), and
pkg/controller/podautoscaler/replica_calculator.go of Kubernetes (pods that are not ready). Constants:

- a decision every 15 s, on metrics of the last 15 s (metrics-server's resolution);
- desired = ceil(current × value / target); none within a tolerance of 0.1;
- pods that are not ready count as 0 when the ratio is above 1, so that they damp the increase;
- up: at most +100 % or +4 pods per 15 s, the larger; no stabilisation;
- down: the highest recommendation of the last 300 s; up to 100 % per 15 s.

Two metrics, of which the better counts: ``utilisation`` of the capacity within the SLO, which is the best Pods metric
there can be; and the offered ``rate`` per worker as an External metric with an average value, which needs the capacity
from a profile but does not saturate.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Literal

from isochrone.simulate.autoscaling.policies.base import Reading

SYNC_SECONDS = 15
TOLERANCE = 0.1
DOWN_STABILISATION_SECONDS = 300
#: Per 15 s.
UP_SHARE, UP_PODS = 1.0, 4

Metric = Literal["utilisation", "rate"]


class Hpa:
    """``target``: utilisation, or the share of a new worker's capacity that is its rate."""

    interval = SYNC_SECONDS
    window = SYNC_SECONDS

    def __init__(
        self, target: float, metric: Metric = "utilisation", stabilisation: int = DOWN_STABILISATION_SECONDS
    ) -> None:
        self.target = target
        self.metric = metric
        self._behaviour = Behaviour(stabilisation)

    def desired(self, reading: Reading) -> int:
        current = reading.ready + reading.pending
        if self.metric == "rate":
            wanted = average_value_replicas(current, reading.offered, self.target * reading.nominal)
        else:
            wanted = utilisation_replicas(reading.ready, reading.pending, reading.utilisation, self.target)
        return self._behaviour.limit(reading.instant, current, wanted)


def utilisation_replicas(ready: int, unready: int, utilisation: float, target: float) -> int:
    """For a metric of pods: the mean over the ready ones."""
    current = ready + unready
    if not ready:
        return current
    ratio = utilisation / target
    if not unready or ratio < 1:
        # Without metrics of pods that are not ready, a decrease starts from the ready ones.
        return current if abs(1 - ratio) <= TOLERANCE else ceil(ratio * ready - 1e-9)
    # They use nothing yet: with them, the ratio is lower.
    ratio *= ready / current
    if ratio <= 1 or abs(1 - ratio) <= TOLERANCE:
        return current
    return ceil(ratio * current - 1e-9)


def average_value_replicas(current: int, value: float, target: float) -> int:
    """For an External metric with an average value: its sum over the number of replicas, ready or not."""
    if current and abs(1 - value / (target * current)) <= TOLERANCE:
        return current
    return ceil(value / target - 1e-9)


class Behaviour:
    """Stabilisation and default policies of ``spec.behavior``. At least one pod."""

    def __init__(self, stabilisation: int = DOWN_STABILISATION_SECONDS) -> None:
        self._stabilisation = stabilisation
        self._recommended: deque[tuple[int, int]] = deque()

    def limit(self, instant: int, current: int, wanted: int) -> int:
        recommended = self._recommended
        recommended.append((instant, wanted))
        while recommended[0][0] < instant - self._stabilisation:
            recommended.popleft()
        if wanted < current:
            wanted = min(current, max(number for _, number in recommended))
        most = max(ceil(current * (1 + UP_SHARE)), current + UP_PODS)
        return max(1, min(wanted, most))
