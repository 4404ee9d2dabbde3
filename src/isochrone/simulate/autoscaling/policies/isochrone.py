"""This project's autoscaler, on the readings of a simulated pool. The decisions are the real ones."""

from __future__ import annotations

from isochrone.control.autoscaler.autoscaler import Autoscaler
from isochrone.control.autoscaler.observation import Observation
from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.simulate.autoscaling.policies.base import Reading

#: Seconds between two readings of a pool by the control plane.
READING_SECONDS = 5


class Isochrone:
    """One pool's autoscaler."""

    interval = READING_SECONDS
    window = READING_SECONDS

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._autoscaler = Autoscaler(settings)

    def desired(self, reading: Reading) -> int:
        total = sum(reading.capacities)
        # A worker that starts is expected to be like those that serve.
        typical = total / len(reading.capacities) if reading.capacities else reading.nominal
        decision = self._autoscaler.decide(
            Observation(
                instant=float(reading.instant),
                offered=reading.offered,
                refused=reading.refused,
                queue_wait=reading.queued / total if total else 0.0,
                ready=reading.capacities,
                pending=(typical,) * reading.pending,
                standby=(typical,) * reading.standby,
                draining=(typical,) * reading.draining,
                time_of_day=float(reading.time_of_day),
            )
        )
        return decision.desired
