"""latency_weighted: smoothed weights from each worker's recent p95. A slow worker gets fewer requests.

The p95 is estimated by stochastic approximation: a step up after a slower answer, a nineteenth of it down after a
faster one. Sources: Ma, Muthukrishnan and Sandler, "Frugal Streaming for Estimating Quantiles", 2013 (here the steps
are shares of the estimate); weights by feedback as in Google's "Site Reliability Engineering", chapter 20. The policy
learns from answers alone: a worker that stops answering keeps its weight, and outlier ejection must remove it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random

from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.weighted.turns import WeightedTurns
from isochrone.gateway.replicas import Replica

_QUANTILE = 0.95
#: Step of the estimate: 3.8 % up after a slower answer, 0.2 % down after a faster one.
_STEP = 0.04
_GAIN = 1 / 64
#: A weight falls with the square root of the latency. Near saturation a worker's latency grows faster than its share
#: of requests, so with proportional weights each correction would be larger than the last.
_EXPONENT = 0.5
#: No worker gets more than this multiple of a typical worker's share.
_CEILING = 3.0


class LatencyWeighted(WeightedTurns):
    """``floor``: the lowest weight, so that every worker is still measured. ``smoothing``: the part of the difference
    to its goal that a weight makes up with each answer."""

    name = "latency_weighted"

    def __init__(self, random: Random, *, floor: float = 0.05, smoothing: float = 0.05) -> None:
        super().__init__(random)
        self._floor = number(self.name, "floor", floor, 0.001, 1)
        self._smoothing = number(self.name, "smoothing", smoothing, 0.001, 1)
        self._p95: dict[Replica, float] = {}
        #: Mean logarithm of all p95: a worker with this one has weight 1.
        self._typical = 0.0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        self._p95 = {replica: self._p95[replica] for replica in replicas if replica in self._p95}
        super().replicas_changed(replicas)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        slot = self._slots.get(replica)
        if slot is None:
            return
        if failed:
            self._follow(slot, replica, self._p95.get(replica, 0.0))
            return
        latency = float(latency_ns) or 1.0
        p95 = self._p95.get(replica)
        if p95 is None:
            # Start with the typical p95: one answer says little about a p95.
            p95 = exp(self._typical) if self._typical else latency
        elif latency > p95:
            # A latency several times higher moves the estimate faster.
            p95 += max(_STEP * _QUANTILE * p95, (latency - p95) / 16)
        else:
            p95 -= _STEP * (1 - _QUANTILE) * p95
        self._p95[replica] = p95
        self._typical = self._typical + (log(p95) - self._typical) * _GAIN if self._typical else log(p95)
        self._follow(slot, replica, p95)

    def _follow(self, slot: int, replica: Replica, p95: float) -> None:
        goal = exp((self._typical - log(p95)) * _EXPONENT) if p95 else 1.0
        goal *= 1 - replica.error_rate
        weight = self.weight(replica)
        weight += (goal - weight) * self._smoothing
        self._strides[slot] = 1 / min(max(weight, self._floor), _CEILING)
