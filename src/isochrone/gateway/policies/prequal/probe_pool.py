"""Prequal's pool of probes: the latest load of a few random workers, and the hot-cold rule over them. Pure.

Source: Wydrowski et al., "Load is not what you should balance: Introducing Prequal", NSDI'24, section 4. The pool must
never hold two probes of one worker, nor a probe of a worker that is not eligible.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import floor
from random import Random

from isochrone.gateway.replicas import Replica

#: The hot-cold quantile is taken over the requests in flight of this many recent probes.
_RECENT = 64
#: Uses of one probe when the formula does not apply because too few probes arrive.
_MOST_USES = 8.0
_NEVER = float("inf")
_MANY = (1 << 62) - 1


class Probe:
    """A worker's load at an instant, and how often it may still be used."""

    __slots__ = ("in_flight", "latency", "received", "replica", "uses")

    def __init__(self, replica: Replica, in_flight: int, latency: float, received: int, uses: int) -> None:
        self.replica = replica
        self.in_flight = in_flight
        self.latency = latency
        self.received = received
        self.uses = uses

    def __repr__(self) -> str:
        return f"<Probe {self.replica.endpoint.address} in_flight={self.in_flight} latency={self.latency:.0f}>"


def reuse(members: int, pool: int, probes_per_query: float, removals_per_query: float, delta: float = 1.0) -> float:
    """How many queries a probe serves: the paper's b. On average one probe arrives for each that is removed."""
    gained = (1 - pool / members) * probes_per_query - removals_per_query
    return max(1.0, min((1 + delta) / gained, _MOST_USES)) if gained > 0 else _MOST_USES


class ProbePool:
    """Probes in the order of arrival, oldest first.

    ``tolerance``, ``slack_ns``: latencies within this factor and time of the lowest count as equal. 1 and 0 is the
    paper's rule: the cold worker with the lowest latency. Where latency is noise, that rule follows chance: on 40 equal
    workers at 0.8 of their capacity the p99 was 44 ms with a tolerance of 1, and 32 ms with 2.
    """

    def __init__(
        self,
        random: Random,
        size: int,
        max_age_ns: int,
        quantile: float,
        removals: float,
        tolerance: float = 1.0,
        slack_ns: float = 0.0,
    ) -> None:
        self._random = random
        self._tolerance = tolerance
        self._slack_ns = slack_ns
        self._size = size
        self.max_age_ns = max_age_ns
        self._quantile = quantile
        self._removals = removals
        #: Queries that one probe serves; the fraction is rounded up or down at random.
        self.uses = 1.0
        self.probes: list[Probe] = []
        #: The limits by which the last ``best`` called a probe safe: cold, and fast enough. -1: none was.
        self.safe_in_flight = -1
        self.safe_latency = 0.0
        self.by_replica: dict[Replica, Probe] = {}
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        #: Requests in flight above which a worker is hot. Computed as probes come, which is apart from any request.
        self.hot_above = 0
        self._owed = 0.0
        self._worst_next = True

    def __len__(self) -> int:
        return len(self.probes)

    def add(self, replica: Replica, in_flight: int, latency: float, now: int) -> None:
        """Add a probe's answer. It replaces an older one of the same worker, or the oldest of a full pool."""
        probes, by_replica = self.probes, self.by_replica
        uses = floor(self.uses + self._random.random())
        probe = by_replica.get(replica)
        if probe is not None:
            probes.remove(probe)
            probe.in_flight, probe.latency, probe.received, probe.uses = in_flight, latency, now, uses
        else:
            if len(probes) >= self._size:
                del by_replica[probes.pop(0).replica]
            by_replica[replica] = probe = Probe(replica, in_flight, latency, now, uses)
        probes.append(probe)
        recent, in_order = self._recent, self._sorted
        recent.append(in_flight)
        insort(in_order, in_flight)
        if len(recent) > _RECENT:
            del in_order[bisect_left(in_order, recent.popleft())]
        self.hot_above = in_order[floor(self._quantile * (len(in_order) - 1))]

    def keep_only(self, eligible: set[Replica]) -> None:
        """Remove the probes of other replicas."""
        for probe in [probe for probe in self.probes if probe.replica not in eligible]:
            self._remove(probe)

    def expire(self, now: int) -> None:
        """Remove probes that are too old."""
        probes = self.probes
        while probes and now - probes[0].received > self.max_age_ns:
            self._remove(probes[0])

    def best(self, avoid: Sequence[Replica]) -> Probe | None:
        """Of the cold probes about as fast as the fastest, the one with the fewest requests in flight; if all are hot,
        the one with the fewest. None: there is no probe that is not avoided."""
        limit = self.hot_above
        probes = [probe for probe in self.probes if probe.replica not in avoid] if avoid else self.probes
        # One pass finds the lowest latency of cold probes and the fewest requests in flight of all; mostly that is it.
        best, fewest, lowest = None, _MANY, _NEVER
        for probe in probes:
            in_flight = probe.in_flight
            if in_flight < fewest:
                best, fewest = probe, in_flight
            if in_flight <= limit and probe.latency < lowest:
                lowest = probe.latency
        if lowest == _NEVER:
            # All hot: the latency does not matter.
            self.safe_in_flight = -1
            return best
        enough = lowest * self._tolerance + self._slack_ns
        self.safe_in_flight, self.safe_latency = limit, enough
        if best is not None and best.latency > enough:
            fewest = limit + 1
            for probe in probes:
                if probe.in_flight < fewest and probe.latency <= enough:
                    best, fewest = probe, probe.in_flight
        return best

    def worst(self) -> Probe:
        """The hot probe with the most requests in flight; if all are cold, the one with the highest latency."""
        probes, most = self.probes, self.hot_above
        worst = None
        for probe in probes:
            if probe.in_flight > most:
                worst, most = probe, probe.in_flight
        if worst is not None:
            return worst
        worst = probes[0]
        longest = worst.latency
        for probe in probes:
            if probe.latency > longest:
                worst, longest = probe, probe.latency
        return worst

    def use(self, probe: Probe) -> None:
        """Count a request to the probe's worker: one more in flight, one use fewer."""
        probe.in_flight += 1
        probe.uses -= 1
        if probe.uses <= 0:
            self.probes.remove(probe)
            del self.by_replica[probe.replica]

    def thin(self) -> None:
        """Remove probes, once per query: alternately the worst and the oldest, so that the rest is neither stale nor
        biased."""
        owed, probes = self._owed + self._removals, self.probes
        while owed >= 1:
            owed -= 1
            if probes:
                if self._worst_next:
                    worst = self.worst()
                    probes.remove(worst)
                    del self.by_replica[worst.replica]
                    self._worst_next = False
                else:
                    del self.by_replica[probes.pop(0).replica]
                    self._worst_next = True
        self._owed = owed

    def _remove(self, probe: Probe) -> None:
        self.probes.remove(probe)
        del self.by_replica[probe.replica]
