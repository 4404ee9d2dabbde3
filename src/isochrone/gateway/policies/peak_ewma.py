"""Peak EWMA: of two members at random, the one with the lower latency times requests in flight.

The latency jumps up with a slow answer at once and comes down slowly, so that a worker in trouble is left alone after
one bad answer. Source: Finagle's ``p2cPeakEwma`` (https://twitter.github.io/finagle/guide/Clients.html), as Linkerd
has it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.toolkit.sampling import one, two
from isochrone.gateway.replicas import Replica

#: Latency taken for a member that has something in flight and never answered: worse than any real one, in ns.
_SILENT_NS = 1e12


class _Peak:
    """A latency in ns, as of an instant."""

    __slots__ = ("at", "latency")

    def __init__(self, latency: float, at: int) -> None:
        self.latency = latency
        self.at = at


class PeakEwma(Policy):
    """``decay_s``: time constant in which an old latency loses all but 1/e of its weight; Finagle's 10 s."""

    name = "peak_ewma"

    def __init__(self, random: Random, *, decay_s: float = 10.0) -> None:
        super().__init__(random)
        self._per_ns = 1e-9 / number(self.name, "decay_s", decay_s, 0.001)
        self._peaks: dict[Replica, _Peak] = {}

    def members(self, replicas: Sequence[Replica]) -> None:
        self._peaks = {replica: self._peaks[replica] for replica in replicas if replica in self._peaks}
        super().members(replicas)

    def choose(self, demand: Demand, now: int) -> Replica:
        if demand.avoid:
            first = one(self._random, self.replicas, demand.avoid)
            second = one(self._random, self.replicas, demand.avoid)
        else:
            first, second = two(self._random, self.replicas)
        return second if self._cost(second, now) < self._cost(first, now) else first

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        if failed:
            # A failure's latency is not believed: who fails fast must not look fast.
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
            # Not known: tried once, and left alone until it has answered.
            return _SILENT_NS * (replica.in_flight + 8 * replica.error_rate)
        latency = peak.latency * exp((peak.at - now) * self._per_ns)
        return latency * (replica.in_flight + 1) * (1 + 8 * replica.error_rate)
