"""Everybody in turn, whatever they do: the baseline.

Source: NGINX's default method (https://nginx.org/en/docs/http/load_balancing.html), without its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.targets import Target


class RoundRobin(Policy):
    name = "round_robin"

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        # Gateways that start together must not walk in step.
        self._next = random.randrange(1 << 16)

    def members(self, targets: Sequence[Target]) -> None:
        super().members(targets)
        self._next %= len(targets) or 1

    def choose(self, demand: Demand, now: int) -> Target:
        targets, slot = self.targets, self._next
        if slot >= len(targets):
            slot = 0
        target = targets[slot]
        if target in demand.avoid:
            for _ in range(min(len(targets) - 1, len(demand.avoid))):
                slot = slot + 1 if slot + 1 < len(targets) else 0
                if targets[slot] not in demand.avoid:
                    target = targets[slot]
                    break
        self._next = slot + 1
        return target
