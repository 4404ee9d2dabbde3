"""Fewest requests in flight from here; equals take turns.

Source: NGINX's ``least_conn`` (https://nginx.org/en/docs/http/load_balancing.html). It knows nothing of what other
gateways send, and a worker that fails fast looks idle to it: outlier ejection must take that one out.
"""

from __future__ import annotations

from isochrone.gateway.policies.toolkit.scores import ScoredPolicy
from isochrone.gateway.replicas import Replica


class LeastConnections(ScoredPolicy):
    name = "least_connections"

    def _score(self, replica: Replica, now: int) -> float:
        return replica.in_flight
