"""Outlier ejection: endpoints that fail, or are slow compared with the others, get no requests for some time. Pure.

One object per gateway, which reports every ended request. Consecutive failures eject at once; success rates and
latencies are compared on a periodic ``tick``. Ejection only sets ``Endpoint.ejected_until``; the balancer decides
which are eligible, and when health is ignored because too few are left. At most ``max_share`` of the fleet is ejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Annotated, NamedTuple

from isochrone.gateway.replicas import Endpoint
from isochrone.settings.ranges import Amount, Count, Duration, Positive, Range, Share

#: Weight of one latency in a model's mean.
_GAIN = 1 / 256


@dataclass(frozen=True, slots=True)
class OutlierRules:
    """When an endpoint is ejected, and for how long."""

    enabled: bool = True
    #: Consecutive failures (connection lost, no answer in time, 5xx of the server itself) that eject; 0: never.
    consecutive_failures: Count = 5
    #: How often success rates and latencies are compared, at most. The gateway calls ``tick`` with the first refresh of
    #: its fleet after this interval: up to 0.1 s later while requests are under way, up to 1 s later at rest.
    interval_ns: Duration = 1_000_000_000
    #: An endpoint is compared if it ended this many requests in the interval, and this many endpoints did.
    least_requests: Positive = 20
    least_endpoints: Annotated[int, Range(3)] = 3
    #: An endpoint is ejected if its success rate is below the others' mean by this many standard deviations ...
    deviations: Amount = 1.9
    #: ... and by at least this much: among equal workers the deviation is 0, and one failure is not an outlier.
    least_gap: Share = 0.1
    #: An endpoint is ejected if its latency, relative to each model's mean, is this many times the fleet's median; 0:
    #: never. A worker that is twice as slow still helps, and the policy gives it less.
    latency_factor: Amount = 10.0
    #: An ejection lasts this long times the number of recent ejections, up to ``most_ns``.
    base_ns: Duration = 5_000_000_000
    most_ns: Duration = 60_000_000_000
    #: Limit of ejected endpoints, as a share of the fleet, rounded down: of two endpoints one stays.
    max_share: Share = 0.5


class Ejection(NamedTuple):
    """An endpoint was ejected; for the log."""

    endpoint: Endpoint
    reason: str
    until: int


class _Record:
    """An endpoint's results since the last tick, and its recent ejections."""

    __slots__ = ("consecutive", "ejections", "ended", "failed", "slowness", "succeeded")

    def __init__(self) -> None:
        self.consecutive = 0
        self.ended = 0
        self.failed = 0
        #: Sum of latencies, each divided by its model's mean, and their number.
        self.slowness = 0.0
        self.succeeded = 0
        #: Decreases with each tick without failures.
        self.ejections = 0


class Outliers:
    """The endpoints of one gateway, and which of them are ejected."""

    def __init__(self, rules: OutlierRules | None = None) -> None:
        self.rules = rules or OutlierRules()
        self._records: dict[Endpoint, _Record] = {}
        #: Mean latency by model, so that an endpoint with slow models does not look slow.
        self._means: dict[str, float] = {}

    def endpoints_changed(self, endpoints: Iterable[Endpoint], now: int) -> None:
        """Replace the endpoints; those that stay keep their records.

        A smaller fleet may have fewer ejections: those that end first are ended now.
        """
        known = self._records
        self._records = {endpoint: known.get(endpoint) or _Record() for endpoint in endpoints}
        out = sorted((e for e in self._records if e.ejected_until > now), key=lambda e: e.ejected_until)
        for endpoint in out[: len(out) - int(self.rules.max_share * len(self._records))]:
            endpoint.ejected_until = endpoint.joined_at = now

    def configure(self, rules: OutlierRules, now: int) -> None:
        """Replace the rules; the endpoints keep their records."""
        self.rules = rules
        if not rules.enabled:
            for endpoint in self._records:
                if endpoint.ejected_until > now:
                    endpoint.ejected_until = endpoint.joined_at = now
        self.endpoints_changed(list(self._records), now)

    def ended(self, endpoint: Endpoint, model: str, latency_ns: int, failed: bool, now: int) -> Ejection | None:
        """Count an ended request. Returns an ejection if this failure caused one."""
        record = self._records.get(endpoint)
        if record is None:
            return None
        record.ended += 1
        if not failed:
            record.consecutive = 0
            usual = self._means.get(model)
            if not usual:
                usual = float(latency_ns) or 1.0
            self._means[model] = usual + (latency_ns - usual) * _GAIN
            record.slowness += latency_ns / usual
            record.succeeded += 1
            return None
        record.failed += 1
        record.consecutive += 1
        limit = self.rules.consecutive_failures
        if not limit or record.consecutive < limit:
            return None
        # Reset whether or not it can be ejected: the fleet is not searched at each failure, and failures of requests
        # that were sent before an ejection do not eject again after it.
        record.consecutive = 0
        return (
            None if endpoint.ejected_until > now else self._eject(endpoint, record, f"{limit} failures in a row", now)
        )

    def succeeded(self, endpoint: Endpoint, model: str, count: int, total_ns: int) -> None:
        """Count requests that succeeded, and their total latency: for a caller that gathers them."""
        record = self._records.get(endpoint)
        if record is None or not count:
            return
        record.consecutive = 0
        record.ended += count
        record.succeeded += count
        mean = total_ns / count
        usual = self._means.get(model) or mean or 1.0
        self._means[model] = usual + (mean - usual) * min(1.0, count * _GAIN)
        record.slowness += total_ns / usual

    def tick(self, now: int) -> list[Ejection]:
        """Compare the endpoints by their results since the last tick, and eject the worst first. Past ejections of
        endpoints without failures are discarded one by one."""
        rules = self.rules
        ejections: list[Ejection] = []
        if rules.enabled:
            found = self._unsuccessful(now) + self._slow(now)
            for _, endpoint, reason in sorted(found, key=lambda outlier: -outlier[0]):
                if endpoint.ejected_until <= now:
                    ejection = self._eject(endpoint, self._records[endpoint], reason, now)
                    ejections += [ejection] if ejection else []
        for endpoint, record in self._records.items():
            if record.ejections and endpoint.ejected_until + rules.base_ns <= now and not record.failed:
                record.ejections -= 1
            record.ended = record.failed = record.succeeded = 0
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
        """Compare each endpoint with the mean and deviation of the *others*: in a fleet of four, one that always fails
        is only 1.7 deviations from a mean that includes it, and would never be found.
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
        """Compare each endpoint with the fleet's median. Slow endpoints rank behind failing ones."""
        factor = self.rules.latency_factor
        slowness = [
            (endpoint, record.slowness / record.succeeded)
            for endpoint, record in self._compared(now)
            if record.succeeded
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
        record.ejections += 1
        until = now + min(rules.base_ns * record.ejections, rules.most_ns)
        endpoint.ejected_until = until
        # It returns like a new endpoint, with slow start.
        endpoint.joined_at = until
        return Ejection(endpoint, reason, until)
