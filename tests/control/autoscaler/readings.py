"""Readings of a pool of equal workers, as tests of the autoscaler need them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from isochrone.control.autoscaler.autoscaler import Autoscaler
from isochrone.control.autoscaler.decision import Decision
from isochrone.control.autoscaler.observation import Observation

CAPACITY = 100.0


def reading(
    instant: float, offered: float | None, ready: int | tuple[float, ...], pending: int = 0, **others: Any
) -> Observation:
    capacities = (CAPACITY,) * ready if isinstance(ready, int) else ready
    return Observation(instant, offered, ready=capacities, pending=(CAPACITY,) * pending, **others)


@dataclass
class SmallPool:
    """Carries out decisions: workers need ``start_up`` seconds, and leave at once."""

    autoscaler: Autoscaler
    ready: int = 1
    start_up: float = 120.0
    now: float = 1000.0
    #: Instants at which workers become ready.
    starting: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def turn(self, offered: float | None, seconds: float = 5.0, **others: Any) -> Decision:
        self.now += seconds
        self.ready += sum(at <= self.now for at in self.starting)
        self.starting = [at for at in self.starting if at > self.now]
        decision = self.autoscaler.decide(reading(self.now, offered, self.ready, len(self.starting), **others))
        while self.ready + len(self.starting) < decision.desired:
            self.starting.append(self.now + self.start_up)
        while self.ready + len(self.starting) > decision.desired:
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
        self.sizes.append(decision.desired)
        return decision
