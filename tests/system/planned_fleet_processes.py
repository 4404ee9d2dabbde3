"""Real fleets with planned pools, whose workers need not have the models that other fleets wait for."""

from __future__ import annotations

from real_fleets import served_by

from bench.control.fleet_run import SupervisedFleet
from bench.control.running_fleet import WORKER


class PlannedFleet(SupervisedFleet):
    def responds(self, name: str) -> bool:
        """Of a worker: whether it answers, whatever models it has."""
        part = self.parts[name]
        if part.role != WORKER:
            return super().responds(name)
        try:
            served_by(part.address)
        except OSError:
            return False
        return True
