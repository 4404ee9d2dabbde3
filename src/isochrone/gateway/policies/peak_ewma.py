"""peak_ewma: of two random replicas, the one with the lower latency times requests in flight.

A slow answer raises the latency estimate at once; fast answers lower it slowly. So a worker in trouble is avoided after
one slow answer. Source: Finagle's ``p2cPeakEwma`` (https://twitter.github.io/finagle/guide/Clients.html), also used by
Linkerd.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.toolkit.sampling import one, two
from isochrone.gateway.replicas import Replica

#: Latency assumed for a replica that has requests in flight and has never answered, in ns: above any real one.
_SILENT_NS = 1e12


class _Peak:
    """A latency estimate in ns, and when it was updated."""

    __slots__ = ("at", "latency")

    def __init__(self, latency: float, at: int) -> None:
        self.latency = latency
        self.at = at


class PeakEwma(Policy):
    """``decay_s``: the time after which an old latency has 1/e of its weight. 10 s as in Finagle."""

    name = "peak_ewma"

    def __init__(self, random: Random, *, decay_s: float = 10.0) -> None:
        super().__init__(random)
        self._per_ns = 1e-9 / number(self.name, "decay_s", decay_s, 0.001)
        self._peaks: dict[Replica, _Peak] = {}

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        self._peaks = {replica: self._peaks[replica] for replica in replicas if replica in self._peaks}
        super().replicas_changed(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        if demand.avoid:
            first = one(self._random, self.replicas, demand.avoid)
            second = one(self._random, self.replicas, demand.avoid)
        else:
            first, second = two(self._random, self.replicas)
        return second if self._cost(second, now) < self._cost(first, now) else first

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        if failed:
            # A failure's latency does not count: a worker that fails fast must not look fast.
            return
        peak = self._peaks.get(replica)
        if peak is None:
            self._peaks[replica] = _Peak(latency_ns, now)
            return
        if latency_ns > peak.latency:
            peak.latency = latency_ns
        else:
            kept = exp((peak.at - now) * self._per_ns)
            peak.latency = peak.latency * kept + latency_ns * (1 - kept)
        peak.at = now

    def _cost(self, replica: Replica, now: int) -> float:
        peak = self._peaks.get(replica)
        if peak is None:
            # No answer yet: it gets one request, and no more until it has answered.
            return _SILENT_NS * (replica.in_flight + 8 * replica.error_rate)
        latency = peak.latency * exp((peak.at - now) * self._per_ns)
        return latency * (replica.in_flight + 1) * (1 + 8 * replica.error_rate)
