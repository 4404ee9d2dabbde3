"""Weighted round robin as Prequal was held against: turns in proportion to goodput over utilisation.

Once a second a worker's weight becomes queries per second over the share of its processor they took, smoothed, with
errors counted as use. It evens out utilisation, and that is its flaw: a worker whose neighbours take the processor
away looks no worse by this measure. Sources: Wydrowski et al., "Load is not what you should balance", NSDI'24, section
2; gRFC A58 (https://github.com/grpc/proposal/blob/master/A58-client-side-weighted-round-robin-lb-policy.md) for the
penalty and for what newcomers get.

The shell tells utilisation by ``utilised`` where it knows it. Else it is the share of time in which the worker had
something to do from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.weighted.turns import WeightedTurns
from isochrone.gateway.replicas import Replica

#: Weight of one worker's rate in the mean of all.
_GAIN = 1 / 16


class _Tally:
    """One member since its weight was last looked at. Times in ns."""

    __slots__ = ("answers", "began", "busy_ns", "busy_since", "failures", "told")

    def __init__(self, now: int) -> None:
        self.began = now
        self.answers = 0
        self.failures = 0
        self.busy_ns = 0
        self.busy_since = now
        #: Utilisation by the worker's word; below 0: not told.
        self.told = -1.0


class WeightedRoundRobin(WeightedTurns):
    """``period_s``: how often a weight is looked at. ``smoothing``: the new figure's share in the weight.
    ``error_penalty``: how much of a processor a stream of nothing but failures counts for, as in gRFC A58."""

    name = "weighted_round_robin"

    def __init__(
        self, random: Random, *, period_s: float = 1.0, smoothing: float = 0.3, error_penalty: float = 1.0
    ) -> None:
        super().__init__(random)
        self._period_ns = int(number(self.name, "period_s", period_s, 0.001) * 1e9)
        self._smoothing = number(self.name, "smoothing", smoothing, 0.01, 1)
        self._error_penalty = number(self.name, "error_penalty", error_penalty, 0)
        self._tallies: dict[Replica, _Tally] = {}
        #: Goodput over utilisation, in queries per second of a whole processor.
        self._rates: dict[Replica, float] = {}
        #: The first one found: a weight of 1.
        self._unit = 0.0
        #: The mean, which newcomers get (gRFC A58).
        self._typical = 0.0

    def members(self, replicas: Sequence[Replica]) -> None:
        self._tallies = {replica: self._tallies[replica] for replica in replicas if replica in self._tallies}
        self._rates = {replica: self._rates[replica] for replica in replicas if replica in self._rates}
        super().members(replicas)

    def sent(self, replica: Replica, now: int) -> None:
        tally = self._tallies.get(replica)
        if tally is None:
            tally = self._tallies[replica] = _Tally(now)
        if replica.in_flight == 1:
            tally.busy_since = now

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        tally = self._tallies.get(replica)
        if tally is None:
            return
        tally.answers += 1
        if failed:
            tally.failures += 1
        self._rest(tally, replica, now)
        if now - tally.began >= self._period_ns:
            self._weigh(tally, replica, now)

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        tally = self._tallies.get(replica)
        if tally is not None:
            self._rest(tally, replica, now)

    def utilised(self, replica: Replica, utilisation: float) -> None:
        """The worker's own word: the share of its processor in use, 1 being all it was given."""
        tally = self._tallies.get(replica)
        if tally is not None:
            tally.told = utilisation

    @staticmethod
    def _rest(tally: _Tally, replica: Replica, now: int) -> None:
        if replica.in_flight == 0:
            tally.busy_ns += now - tally.busy_since
            tally.busy_since = now

    def _weigh(self, tally: _Tally, replica: Replica, now: int) -> None:
        span = now - tally.began
        if replica.in_flight:
            tally.busy_ns += now - tally.busy_since
        use = tally.told if tally.told >= 0 else tally.busy_ns / span
        use += self._error_penalty * tally.failures / tally.answers
        good = (tally.answers - tally.failures) * 1e9 / span
        # Nothing but failures still has a weight: somebody has to find out when that is over.
        found = max(good, 0.01) / max(use, 0.01)
        before = self._rates.get(replica, found)
        rate = self._rates[replica] = before + (found - before) * self._smoothing
        if not self._unit:
            self._unit = self._typical = rate
        self._typical += (rate - self._typical) * _GAIN
        self._weight_of_newcomers = self._typical / self._unit
        self._set_weight(replica, rate / self._unit)
        told = tally.told
        tally = self._tallies[replica] = _Tally(now)
        tally.told = told
