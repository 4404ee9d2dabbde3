"""power_of_two: of two random replicas, the one with fewer requests in flight from this gateway.

Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001; Envoy's LEAST_REQUEST
with equal weights. If many gateways each chose the least loaded worker, all would choose the same one.
"""

from __future__ import annotations

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.sampling import less_busy
from isochrone.gateway.replicas import Replica


class PowerOfTwo(Policy):
    name = "power_of_two"

    def choose(self, demand: Demand, now: int) -> Replica:
        return less_busy(self._random, self.replicas, demand.avoid)
