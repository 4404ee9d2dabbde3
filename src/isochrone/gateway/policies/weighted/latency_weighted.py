"""Weights from each worker's recent p95, smoothed: a worker that slows down gets fewer requests, and then recovers.

The p95 is followed by stochastic approximation: a step up after a slower answer, a nineteenth of it down after a
faster one. Source: Ma, Muthukrishnan and Sandler, "Frugal Streaming for Estimating Quantiles", 2013 (the steps here are
shares of the estimate); smooth weights by feedback as in Google's "Site Reliability Engineering", chapter 20. Answers
are all it learns from: a worker that stops answering keeps its weight, so leave that to outlier ejection.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random

from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.weighted.turns import WeightedTurns
from isochrone.gateway.replicas import Replica

_QUANTILE = 0.95
#: Step of the estimate: up by 3.8 % after a slower answer, down by 0.2 % after a faster one.
_STEP = 0.04
_GAIN = 1 / 64
#: A weight goes with the root of the latency. A worker's latency grows faster than its share of requests, and with
#: weights in full proportion near saturation each correction is larger than the last.
_EXPONENT = 0.5
#: No worker gets more than this multiple of a typical one's share.
_CEILING = 3.0


class LatencyWeighted(WeightedTurns):
    """``floor``: the lowest weight, so that everybody goes on being measured. ``smoothing``: share of the way a weight
    goes towards its goal with each answer."""

    name = "latency_weighted"

    def __init__(self, random: Random, *, floor: float = 0.05, smoothing: float = 0.05) -> None:
        super().__init__(random)
        self._floor = number(self.name, "floor", floor, 0.001, 1)
        self._smoothing = number(self.name, "smoothing", smoothing, 0.001, 1)
        self._p95: dict[Replica, float] = {}
        #: Mean logarithm of everybody's: the p95 that a weight of 1 stands for.
        self._typical = 0.0

    def members(self, replicas: Sequence[Replica]) -> None:
        self._p95 = {replica: self._p95[replica] for replica in replicas if replica in self._p95}
        super().members(replicas)

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
            # Like the others, until it has shown otherwise: one answer says little of a p95.
            p95 = exp(self._typical) if self._typical else latency
        elif latency > p95:
            # A jump to a multiple is followed faster.
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
