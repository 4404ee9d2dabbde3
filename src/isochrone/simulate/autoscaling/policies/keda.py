"""KEDA 2: an operator that decides between none and one worker, with the HorizontalPodAutoscaler from one up.

Source: keda.sh, "ScaledObject specification" and "External scalers". Constants: triggers are polled every 30 s for
activation; the last worker goes after a cooldown of 300 s without activity; from one worker up, the HPA decides every
15 s on the trigger's value as an External metric with an average value.

Two triggers, of which the better counts: requests in the pool (``in_flight``, what this project's external scaler
serves), and the offered ``rate``, as from a Prometheus query.
"""

from __future__ import annotations

from typing import Literal

from isochrone.simulate.autoscaling.policies.base import Reading
from isochrone.simulate.autoscaling.policies.hpa import (
    DOWN_STABILISATION_SECONDS,
    SYNC_SECONDS,
    Behaviour,
    average_value_replicas,
)

POLLING_SECONDS = 30
COOLDOWN_SECONDS = 300

Trigger = Literal["in_flight", "rate"]


class Keda:
    """``target``: share of what one fully used worker has in flight, or of a new worker's capacity."""

    interval = SYNC_SECONDS
    window = SYNC_SECONDS

    def __init__(
        self,
        target: float,
        trigger: Trigger = "in_flight",
        stabilisation: int = DOWN_STABILISATION_SECONDS,
        can_be_empty: bool = False,
    ) -> None:
        self.target = target
        self.trigger = trigger
        self._can_be_empty = can_be_empty
        self._behaviour = Behaviour(stabilisation)
        self._active_at = 0

    def desired(self, reading: Reading) -> int:
        current = reading.ready + reading.pending
        if reading.offered > 0 or reading.in_flight > 0:
            self._active_at = reading.instant
        if not current:
            is_poll = not reading.instant % POLLING_SECONDS
            return 1 if is_poll and self._active_at == reading.instant else 0
        if self._can_be_empty and reading.instant - self._active_at >= COOLDOWN_SECONDS:
            return 0
        if self.trigger == "rate":
            wanted = average_value_replicas(current, reading.offered, self.target * reading.nominal)
        else:
            wanted = average_value_replicas(current, reading.in_flight, self.target * reading.full_in_flight)
        return self._behaviour.limit(reading.instant, current, wanted)
