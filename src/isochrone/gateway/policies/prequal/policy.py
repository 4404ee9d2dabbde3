"""prequal, the default: of the workers that are not hot by requests in flight, the one with the lowest latency.

In a fleet larger than the pool, the choice is among recent probes (``probe_pool``): about three per query, sent to
random replicas, independently of the query. In a smaller fleet, load reports arrive with every answer and the choice is
among all replicas (``whole_fleet``). Source: Wydrowski et al., "Load is not what you should balance: Introducing
Prequal", NSDI'24.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.prequal.probe_pool import Probe, ProbePool, reuse
from isochrone.gateway.policies.prequal.whole_fleet import WholeFleet
from isochrone.gateway.policies.toolkit.options import number, whole
from isochrone.gateway.policies.toolkit.sampling import one
from isochrone.gateway.replicas import Replica

#: With fewer probes than this there is nothing to compare.
FEWEST_PROBES = 2
#: A fleet up to this size that fits into the pool needs no probes: each replica answers often enough to report its
#: load, and the monitor checks the others ten times a second.
_KNOWN_BY_ANSWERS = 16


class Prequal(Policy):
    """``pool``: probes kept, and the largest fleet that is compared whole. ``max_age_s``: of a probe. ``quantile``: of
    requests in flight, above which a worker is hot. ``probes_per_query``, ``removals_per_query``: the paper's r_probe
    and r_remove. ``tolerance``, ``slack_us``: latencies within this factor and time count as equal; the paper has 1
    and 0."""

    name = "prequal"

    def __init__(
        self,
        random: Random,
        *,
        pool: int = 16,
        max_age_s: float = 1.0,
        quantile: float = 0.84,
        probes_per_query: float = 3.0,
        removals_per_query: float = 1.0,
        tolerance: float = 2.0,
        slack_us: float = 200.0,
    ) -> None:
        super().__init__(random)
        self._size = whole(self.name, "pool", pool, 2, 256)
        self._probes_per_query = number(self.name, "probes_per_query", probes_per_query, 0, 16)
        self._removals_per_query = number(self.name, "removals_per_query", removals_per_query, 0, 16)
        equal_within = number(self.name, "tolerance", tolerance, 1)
        slack_ns = number(self.name, "slack_us", slack_us, 0) * 1e3
        self._pool = ProbePool(
            random,
            self._size,
            int(number(self.name, "max_age_s", max_age_s, 0.001) * 1e9),
            number(self.name, "quantile", quantile, 0, 1),
            self._removals_per_query,
            equal_within,
            slack_ns,
        )
        self._fleet = WholeFleet(equal_within, slack_ns)
        self._whole = True
        self._eligible: set[Replica] = set()
        #: Probed, and no load report since.
        self._probed: set[Replica] = set()
        self._owed = 0.0
        #: Mean latency of probes.
        self._typical = 0.0
        #: Choices made without enough probes.
        self.random_fallback = 0

    def counts(self) -> Mapping[str, int]:
        return {"random_fallback": self.random_fallback, "trial": self._fleet.trials}

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        super().replicas_changed(replicas)
        self._whole = len(replicas) <= self._size
        self.wants_probes = not self._whole or len(replicas) > _KNOWN_BY_ANSWERS
        if self._whole:
            order = list(range(len(replicas)))
            self._random.shuffle(order)
            self._fleet.replicas_changed(replicas, order)
            self._probed.clear()
            self._pool.keep_only(set())
        else:
            self._eligible = set(replicas)
            self._probed &= self._eligible
            self._pool.keep_only(self._eligible)
            self._pool.uses = reuse(len(replicas), self._size, self._probes_per_query, self._removals_per_query)

    def choose(self, demand: Demand, now: int) -> Replica:
        if self._whole:
            return self._fleet.choose(demand.avoid, now)
        pool = self._pool
        pool.expire(now)
        probe = pool.best(demand.avoid) if len(pool.probes) >= FEWEST_PROBES else None
        if probe is None:
            self.random_fallback += 1
            return self._without_probes(demand.avoid, now)
        return self._take(probe)

    def _take(self, probe: Probe) -> Replica:
        """Use the probe for a query, and thin the pool."""
        replica, pool = probe.replica, self._pool
        pool.use(probe)
        if len(pool.probes) > FEWEST_PROBES:
            pool.thin()
        return replica

    def _without_probes(self, avoid: Sequence[Replica], now: int) -> Replica:
        """Of three random replicas the least loaded as known here; of equals the one with the lower latency."""
        few = [one(self._random, self.replicas, avoid) for _ in range(3)]
        return min(
            few, key=lambda replica: ((replica.load(now) + 1) * (1 + 8 * replica.error_rate), replica.expected_ns(now))
        )

    def sent(self, replica: Replica, now: int) -> None:
        if self._whole:
            self._fleet.sent(replica, now)

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        if self._whole:
            self._fleet.ended(replica, latency_ns, failed, now)

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        if self._whole:
            self._fleet.dropped(replica, now)

    def wants_report(self, replica: Replica) -> bool:
        pool = self._pool
        return (
            self._whole
            or replica in self._probed
            or replica in pool.by_replica
            or (len(pool.probes) < FEWEST_PROBES and replica in self._eligible)
        )

    def report_candidates(self) -> Iterable[Replica] | None:
        pool = self._pool
        if self._whole or len(pool.probes) < FEWEST_PROBES:
            return None
        return self._probed.union(pool.by_replica)

    def reported(self, replica: Replica, now: int) -> None:
        if self._whole:
            self._fleet.reported(replica, now)
        else:
            self._take_report(replica, now)

    def _take_report(self, replica: Replica, now: int) -> bool:
        """Add a load report to the pool, if it belongs there; whether it does."""
        if replica in self._probed:
            self._probed.discard(replica)
        elif replica not in self._pool.by_replica and (
            len(self._pool.probes) >= FEWEST_PROBES or replica not in self._eligible
        ):
            # A report that comes with an answer is of a worker that was chosen. In a full pool such reports would
            # displace the random ones, and the choice would be among a few workers only.
            return False
        # Errors raise the latency (``Replica.expected_ns``): a worker that fails fast must not look fast.
        latency = replica.expected_ns(now)
        if latency:
            self._typical += (latency - self._typical) / 16
        else:
            # No answer yet: a typical latency, unless it has failed.
            latency = self._typical * (1 + 8 * replica.error_rate)
        self._pool.add(replica, replica.load(now), latency, now)
        return True

    def probes(self, now: int) -> Sequence[Replica]:
        if self._whole:
            silent = self._fleet.silent
            if silent:
                self._fleet.silent = []
            return silent
        owed = self._owed + self._probes_per_query
        asked: list[Replica] = []
        replicas, random, waiting = self.replicas, self._random.random, self._probed
        members = len(replicas)
        while owed >= 1:
            owed -= 1
            replica = replicas[floor(random() * members)]
            # The set is faster to search than the list, and nearly always decides.
            if replica not in waiting or replica not in asked:
                asked.append(replica)
                waiting.add(replica)
        self._owed = owed
        return asked
