"""Prequal: probes tell requests in flight and latency; of the workers that are not hot, the quickest. The default.

A fleet larger than the pool goes by probes (``probe_pool``): about three a query, sent to members at random, apart
from the query itself. A fleet that fits into the pool is known whole from what comes with every answer
(``whole_fleet``), and is asked only when it is silent. Source: Wydrowski et al., "Load is not what you should balance:
Introducing Prequal", NSDI'24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from random import Random

from isochrone.gateway.policies.base import Demand, Policy
from isochrone.gateway.policies.prequal.probe_pool import Probe, ProbePool, reuse
from isochrone.gateway.policies.prequal.whole_fleet import WholeFleet
from isochrone.gateway.policies.toolkit.options import number, whole
from isochrone.gateway.policies.toolkit.sampling import one
from isochrone.gateway.replicas import Replica

#: With fewer probes than this there is no choice to speak of.
FEWEST_PROBES = 2
#: A fleet up to this size that is known whole needs no probes: each replica gets enough requests to report its load
#: with their answers, and the monitor asks the silent ones ten times a second.
_KNOWN_BY_ANSWERS = 16


class Prequal(Policy):
    """``pool``: probes kept, and the largest fleet that needs none. ``max_age_s``: of a probe. ``quantile``: of the
    requests in flight, above which a worker is hot. ``probes_per_query``, ``removals_per_query``: the paper's r_probe
    and r_remove. ``tolerance``, ``slack_us``: latencies within this factor and time are equal; 1 and 0: as in it."""

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
        self._members: set[Replica] = set()
        #: Asked, and not heard of since.
        self._asked: set[Replica] = set()
        self._owed = 0.0
        #: Mean latency told by probes.
        self._typical = 0.0
        #: Choices made without enough probes.
        self.random_fallback = 0

    def counts(self) -> Mapping[str, int]:
        return {"random_fallback": self.random_fallback, "trial": self._fleet.trials}

    def members(self, replicas: Sequence[Replica]) -> None:
        super().members(replicas)
        self._whole = len(replicas) <= self._size
        self.wants_probes = not self._whole or len(replicas) > _KNOWN_BY_ANSWERS
        if self._whole:
            order = list(range(len(replicas)))
            self._random.shuffle(order)
            self._fleet.members(replicas, order)
            self._asked.clear()
            self._pool.keep_only(set())
        else:
            self._members = set(replicas)
            self._asked &= self._members
            self._pool.keep_only(self._members)
            self._pool.uses = reuse(len(replicas), self._size, self._probes_per_query, self._removals_per_query)

    def choose(self, demand: Demand, now: int) -> Replica:
        if self._whole:
            return self._fleet.choose(demand.avoid, now)
        pool = self._pool
        pool.expire(now)
        probe = pool.best(demand.avoid) if len(pool.probes) >= FEWEST_PROBES else None
        if probe is None:
            self.random_fallback += 1
            return self._of_a_few(demand.avoid, now)
        return self._take(probe)

    def _take(self, probe: Probe) -> Replica:
        """The probe serves a query, and the pool is thinned for it."""
        replica, pool = probe.replica, self._pool
        pool.use(probe)
        if len(pool.probes) > FEWEST_PROBES:
            pool.thin()
        return replica

    def _of_a_few(self, avoid: Sequence[Replica], now: int) -> Replica:
        """No probes to go by: of three at random the least loaded as seen from here, the quicker of equals."""
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

    def reported(self, replica: Replica, now: int) -> None:
        if self._whole:
            self._fleet.reported(replica, now)
        else:
            self._heard(replica, now)

    def _heard(self, replica: Replica, now: int) -> bool:
        """Its word came; whether the pool has it now."""
        if replica in self._asked:
            self._asked.discard(replica)
        elif replica not in self._pool.by_replica and (
            len(self._pool.probes) >= FEWEST_PROBES or replica not in self._members
        ):
            # News that comes with an answer is of a worker that was chosen: in a full pool it would crowd out the
            # random ones, and the choice would go round among a few.
            return False
        # Errors make the latency look longer (``Replica.expected_ns``): who fails fast must not look fast.
        latency = replica.expected_ns(now)
        if latency:
            self._typical += (latency - self._typical) / 16
        else:
            # Never answered: like the others, unless it failed.
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
        replicas, random, waiting = self.replicas, self._random.random, self._asked
        members = len(replicas)
        while owed >= 1:
            owed -= 1
            replica = replicas[floor(random() * members)]
            # The set is quicker to look into than the list, and nearly always enough.
            if replica not in waiting or replica not in asked:
                asked.append(replica)
                waiting.add(replica)
        self._owed = owed
        return asked
