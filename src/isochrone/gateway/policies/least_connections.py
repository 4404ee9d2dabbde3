"""least_connections: the fewest requests in flight from this gateway; equal replicas take turns.

Source: NGINX's ``least_conn`` (https://nginx.org/en/docs/http/load_balancing.html). The policy does not see
the requests of other gateways, and a worker that fails fast looks idle to it: outlier ejection must remove that worker.
"""

from __future__ import annotations

from isochrone.gateway.policies.toolkit.scores import ScoredPolicy
from isochrone.gateway.replicas import Replica


class LeastConnections(ScoredPolicy):
    name = "least_connections"

    def _score(self, replica: Replica, now: int) -> float:
        return replica.in_flight
