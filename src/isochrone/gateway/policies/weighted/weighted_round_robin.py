"""weighted_round_robin: turns in proportion to goodput divided by utilisation. The baseline of the Prequal paper.

Once per period a worker's weight is updated to its queries per second divided by the share of its processor that they
used, smoothed; errors count as use. The rule equalises utilisation, and that is its weakness: a worker whose neighbours
take its processor time looks no worse. Sources: Wydrowski et al., "Load is not what you should balance", NSDI'24,
section 2; gRFC A58 (https://github.com/grpc/proposal/blob/master/A58-client-side-weighted-round-robin-lb-policy.md)
for the error penalty and the initial weight.

The caller reports utilisation by ``utilised`` if it knows it. Otherwise it is the share of time in which the worker had
requests of this gateway in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from isochrone.gateway.policies.toolkit.options import number
from isochrone.gateway.policies.weighted.turns import WeightedTurns
from isochrone.gateway.replicas import Replica

#: Weight of one update in the mean rate of all workers.
_GAIN = 1 / 16


class _Tally:
    """One replica since its weight was last updated. Times in ns."""

    __slots__ = ("answers", "began", "busy_ns", "busy_since", "failures", "reported")

    def __init__(self, now: int) -> None:
        self.began = now
        self.answers = 0
        self.failures = 0
        self.busy_ns = 0
        self.busy_since = now
        #: Utilisation as reported; below 0: not reported.
        self.reported = -1.0


class WeightedRoundRobin(WeightedTurns):
    """``period_s``: time between updates of a weight. ``smoothing``: share of the new value in the weight.
    ``error_penalty``: utilisation that a stream of failures alone counts for, as in gRFC A58."""

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
        #: The first rate that was measured: it has weight 1.
        self._unit = 0.0
        #: The mean rate, with which new replicas start (gRFC A58).
        self._typical = 0.0

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        self._tallies = {replica: self._tallies[replica] for replica in replicas if replica in self._tallies}
        self._rates = {replica: self._rates[replica] for replica in replicas if replica in self._rates}
        super().replicas_changed(replicas)

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
        """The worker reports the share of its processor in use; 1: all that it was given."""
        tally = self._tallies.get(replica)
        if tally is not None:
            tally.reported = utilisation

    @staticmethod
    def _rest(tally: _Tally, replica: Replica, now: int) -> None:
        if replica.in_flight == 0:
            tally.busy_ns += now - tally.busy_since
            tally.busy_since = now

    def _weigh(self, tally: _Tally, replica: Replica, now: int) -> None:
        span = now - tally.began
        if replica.in_flight:
            tally.busy_ns += now - tally.busy_since
        use = tally.reported if tally.reported >= 0 else tally.busy_ns / span
        use += self._error_penalty * tally.failures / tally.answers
        good = (tally.answers - tally.failures) * 1e9 / span
        # A worker with failures alone keeps a small weight: its requests show when it has recovered.
        measured = max(good, 0.01) / max(use, 0.01)
        before = self._rates.get(replica, measured)
        rate = self._rates[replica] = before + (measured - before) * self._smoothing
        if not self._unit:
            self._unit = self._typical = rate
        self._typical += (rate - self._typical) * _GAIN
        self._initial_weight = self._typical / self._unit
        self._set_weight(replica, rate / self._unit)
        reported = tally.reported
        tally = self._tallies[replica] = _Tally(now)
        tally.reported = reported
