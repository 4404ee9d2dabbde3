"""A small fleet whose figures a test sets as it likes, and weights that make the model's wish easy to foresee."""

from __future__ import annotations

from random import Random
from typing import Any

from policy_queues import MS, fleet

from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.learned.features import NAMES
from isochrone.gateway.policies.learned.model import Weights
from isochrone.gateway.policies.learned.policy import Learned
from isochrone.gateway.replicas import LoadReport, Replica

START = 1_000 * MS


def weights(margin: float = 0.05, **given: float) -> Weights:
    """By default the earliest answer by load reports wins, whatever the load."""
    chosen = given or {"outlook": 1.0}
    return Weights({name: chosen.get(name, 0.0) for name in NAMES}, dict.fromkeys(NAMES, (-3.0, 3.0)), margin)


class Stage:
    """A policy and its replicas at an instant. All have answered once, in 2 ms, and reported a run of 2 ms."""

    def __init__(self, size: int = 4, seed: int = 1, **options: Any) -> None:
        options.setdefault("weights", weights())
        options.setdefault("explore", 0.0)
        options.setdefault("floor", 0.0)
        self.policy = Learned(Random(seed), **options)
        self.now = START
        self.replicas = fleet(size)
        self.policy.replicas_changed(self.replicas)
        for replica in self.replicas:
            replica.ended(replica.sent(), 2 * MS, False, self.now)
        for replica in self.replicas:
            self.tell(replica)

    def tell(self, replica: Replica, load: int = 0, wait_ms: float = 0.0, run_ms: float = 2.0) -> None:
        replica.reported(LoadReport(load, load, int(wait_ms * MS), int(run_ms * MS)), self.now)
        self.policy.reported(replica, self.now)

    def choose(self, **demand: Any) -> Replica:
        """A choice that is not sent."""
        return self.policy.choose(Demand(**demand), self.now)

    def place(self, latency_ns: int = 2 * MS, failed: bool = False, fails_at: Replica | None = None) -> Replica:
        """A whole request: chosen, sent, and answered at once as far as the fleet's figures go."""
        self.now += MS // 10
        replica = self.policy.choose(Demand(), self.now)
        load = replica.sent()
        self.policy.sent(replica, self.now)
        ended = self.now + latency_ns
        lost = failed or replica is fails_at
        replica.ended(load, latency_ns, lost, ended)
        self.policy.ended(replica, latency_ns, lost, ended)
        return replica
