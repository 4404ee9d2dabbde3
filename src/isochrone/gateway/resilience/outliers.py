"""Which endpoints are left out for a while because they fail or are slow beside the others. Pure.

One object per gateway, told of every request that ended. Failures in a row act at once; success rates and latencies are
compared on a periodic ``tick``. It only sets ``Endpoint.ejected_until``: who is eligible, and when health is ignored
because too few are left, is the balancer's word. It never ejects more than its share of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Annotated, NamedTuple

from isochrone.gateway.replicas import Endpoint
from isochrone.settings.ranges import Amount, Count, Duration, Positive, Range, Share

#: Weight of one latency in a model's usual one.
_GAIN = 1 / 256


@dataclass(frozen=True, slots=True)
class OutlierRules:
    """When an endpoint is ejected, and for how long."""

    enabled: bool = True
    #: Failures in a row (connection lost, no answer in time, 5xx of the server itself) that eject at once; 0: never.
    consecutive_failures: Count = 5
    #: How often success rates and latencies are compared; the shell calls ``tick`` so often.
    interval_ns: Duration = 1_000_000_000
    #: An endpoint is compared when it ended so many requests in the interval, and so many endpoints did.
    least_requests: Positive = 20
    least_endpoints: Annotated[int, Range(3)] = 3
    #: Ejected when its success rate is below the mean of the others by so many of their standard deviations ...
    deviations: Amount = 1.9
    #: ... and by at least so much: equal workers have no deviation, and one failure is not an outlier.
    least_gap: Share = 0.1
    #: Ejected when its latency is so many times the fleet's median, model by model; 0: never. A worker twice as slow
    #: still helps, and the policy gives it less: this is for one that has all but stopped.
    latency_factor: Amount = 10.0
    #: An ejection lasts this long times how often it was ejected, up to the most.
    base_ns: Duration = 5_000_000_000
    most_ns: Duration = 60_000_000_000
    #: Endpoints ejected at once, as a share of the fleet, rounded down: the last one of two stays.
    max_share: Share = 0.5


class Ejection(NamedTuple):
    """An endpoint was left out; for the log."""

    endpoint: Endpoint
    reason: str
    until: int


class _Record:
    """What an endpoint did since the last tick, and its past."""

    __slots__ = ("ended", "failed", "in_a_row", "slowness", "times", "well")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.ended = 0
        self.failed = 0
        #: Sum of latencies, each over what is usual for its model, and how many.
        self.slowness = 0.0
        self.well = 0
        #: Ejections that are not forgiven yet.
        self.times = 0


class Outliers:
    """The endpoints of one gateway, and who of them is left out."""

    def __init__(self, rules: OutlierRules | None = None) -> None:
        self.rules = rules or OutlierRules()
        self._records: dict[Endpoint, _Record] = {}
        #: Running mean of latency by model, so that an endpoint with heavy models does not look slow.
        self._usual: dict[str, float] = {}

    def endpoints_changed(self, endpoints: Iterable[Endpoint], now: int) -> None:
        """The fleet is this from now on; what is known of those that stay is kept.

        In a smaller fleet fewer may be left out: those whose time is nearly over come back.
        """
        known = self._records
        self._records = {endpoint: known.get(endpoint) or _Record() for endpoint in endpoints}
        out = sorted((e for e in self._records if e.ejected_until > now), key=lambda e: e.ejected_until)
        for endpoint in out[: len(out) - int(self.rules.max_share * len(self._records))]:
            endpoint.ejected_until = endpoint.joined_at = now

    def configure(self, rules: OutlierRules, now: int) -> None:
        """These are the rules from now on; what is known of the endpoints is kept."""
        self.rules = rules
        if not rules.enabled:
            for endpoint in self._records:
                if endpoint.ejected_until > now:
                    endpoint.ejected_until = endpoint.joined_at = now
        self.endpoints_changed(list(self._records), now)

    def ended(self, endpoint: Endpoint, model: str, latency_ns: int, failed: bool, now: int) -> Ejection | None:
        """A request is over. Returns an ejection when this was one failure too many."""
        record = self._records.get(endpoint)
        if record is None:
            return None
        record.ended += 1
        if not failed:
            record.in_a_row = 0
            usual = self._usual.get(model)
            if not usual:
                usual = float(latency_ns) or 1.0
            self._usual[model] = usual + (latency_ns - usual) * _GAIN
            record.slowness += latency_ns / usual
            record.well += 1
            return None
        record.failed += 1
        record.in_a_row += 1
        limit = self.rules.consecutive_failures
        if not limit or record.in_a_row < limit:
            return None
        # Counted anew whether or not it can be ejected: a fleet in trouble is not gone through at each failure, and
        # failures of what was sent before an ejection do not eject again after it.
        record.in_a_row = 0
        return (
            None if endpoint.ejected_until > now else self._eject(endpoint, record, f"{limit} failures in a row", now)
        )

    def succeeded(self, endpoint: Endpoint, model: str, count: int, total_ns: int) -> None:
        """So many requests ended well, in so much time together: for a shell that gathers them."""
        record = self._records.get(endpoint)
        if record is None or not count:
            return
        record.in_a_row = 0
        record.ended += count
        record.well += count
        mean = total_ns / count
        usual = self._usual.get(model) or mean or 1.0
        self._usual[model] = usual + (mean - usual) * min(1.0, count * _GAIN)
        record.slowness += total_ns / usual

    def tick(self, now: int) -> list[Ejection]:
        """Compares the endpoints over what ended since the last tick, the worst first; old sins are forgiven."""
        rules = self.rules
        ejections: list[Ejection] = []
        if rules.enabled:
            suspects = self._unsuccessful(now) + self._slow(now)
            for _, endpoint, reason in sorted(suspects, key=lambda suspect: -suspect[0]):
                if endpoint.ejected_until <= now:
                    ejection = self._eject(endpoint, self._records[endpoint], reason, now)
                    ejections += [ejection] if ejection else []
        for endpoint, record in self._records.items():
            if record.times and endpoint.ejected_until + rules.base_ns <= now and not record.failed:
                record.times -= 1
            record.ended = record.failed = record.well = 0
            record.slowness = 0.0
        return ejections

    def _compared(self, now: int) -> list[tuple[Endpoint, _Record]]:
        compared = [
            (endpoint, record)
            for endpoint, record in self._records.items()
            if record.ended >= self.rules.least_requests and endpoint.ejected_until <= now
        ]
        return compared if len(compared) >= self.rules.least_endpoints else []

    def _unsuccessful(self, now: int) -> list[tuple[float, Endpoint, str]]:
        """Each against the mean and deviation of the *others*: in a fleet of four, one that fails always is only
        1.7 deviations from a mean it is part of, and would never be found.
        """
        rules = self.rules
        rates = [(endpoint, 1 - record.failed / record.ended) for endpoint, record in self._compared(now)]
        others = len(rates) - 1
        total = sum(rate for _, rate in rates)
        squares = sum(rate * rate for _, rate in rates)
        found = []
        for endpoint, rate in rates:
            mean = (total - rate) / others
            deviation = sqrt(max(0.0, (squares - rate * rate) / others - mean * mean))
            if rate < mean - max(rules.deviations * deviation, rules.least_gap):
                found.append((1 + mean - rate, endpoint, f"success rate {rate:.3f}, the others' is {mean:.3f}"))
        return found

    def _slow(self, now: int) -> list[tuple[float, Endpoint, str]]:
        """Each against the fleet's median; ranked behind those that fail."""
        factor = self.rules.latency_factor
        slowness = [
            (endpoint, record.slowness / record.well) for endpoint, record in self._compared(now) if record.well
        ]
        if not factor or len(slowness) < self.rules.least_endpoints:
            return []
        usual = median(slow for _, slow in slowness)
        return [
            (1 - usual / slow, endpoint, f"latency {slow / usual:.1f} times the fleet's median")
            for endpoint, slow in slowness
            if slow > factor * usual and usual > 0
        ]

    def _eject(self, endpoint: Endpoint, record: _Record, reason: str, now: int) -> Ejection | None:
        rules = self.rules
        out = sum(other.ejected_until > now for other in self._records)
        if not rules.enabled or out + 1 > rules.max_share * len(self._records):
            return None
        record.times += 1
        until = now + min(rules.base_ns * record.times, rules.most_ns)
        endpoint.ejected_until = until
        # It comes back as a newcomer does: slow start gives it a little at first.
        endpoint.joined_at = until
        return Ejection(endpoint, reason, until)
