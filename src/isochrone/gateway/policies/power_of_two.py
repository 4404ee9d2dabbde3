"""Of two members at random, the one with fewer requests in flight from here.

Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001; Envoy's LEAST_REQUEST
with equal weights. Many gateways that each take the least loaded would all take the same one; with two random choices
they do not.
"""

from __future__ import annotations

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.sampling import less_busy
from isochrone.gateway.replicas import Replica


class PowerOfTwo(Policy):
    name = "power_of_two"

    def choose(self, demand: Demand, now: int) -> Replica:
        return less_busy(self._random, self.replicas, demand.avoid)
