"""What gateways counted of two versions, added up over all of them since a canary's step began. Pure.

Gateways come and go and count from their own start; ``Tally`` takes their reports as they are read and keeps what was
counted since the first. ``Figures`` are what ``judging`` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.gateway.trials import TrialReport, VersionReport, bucket_bounds


@dataclass(frozen=True, slots=True)
class Figures:
    """One version."""

    #: Answers, failures among them.
    requests: int = 0
    failures: int = 0
    #: Latencies of those that did not fail: bucket (``gateway.trials``) to count.
    histogram: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, report: VersionReport) -> Figures:
        return cls(report.requests, report.failures, dict(report.histogram))

    @property
    def failure_share(self) -> float:
        return self.failures / self.requests if self.requests else 0.0

    def plus(self, other: Figures) -> Figures:
        histogram = dict(self.histogram)
        for bucket, count in other.histogram.items():
            histogram[bucket] = histogram.get(bucket, 0) + count
        return Figures(self.requests + other.requests, self.failures + other.failures, histogram)

    def minus(self, earlier: Figures) -> Figures:
        """What came since an earlier reading of the same counts."""
        histogram = {
            bucket: count - earlier.histogram.get(bucket, 0)
            for bucket, count in self.histogram.items()
            if count > earlier.histogram.get(bucket, 0)
        }
        return Figures(self.requests - earlier.requests, self.failures - earlier.failures, histogram)

    def quantile(self, share: float) -> float:
        """The latency in ns that ``share`` of the answers do not exceed; 0 without answers."""
        wanted = share * sum(self.histogram.values())
        passed = 0
        for bucket, count in sorted(self.histogram.items()):
            if passed + count >= wanted:
                # On a straight line inside its bucket.
                low, high = bucket_bounds(bucket)
                return low + (high - low) * (wanted - passed) / count
            passed += count
        return 0.0


_NOTHING = Figures()


class Tally:
    """Both versions over all gateways, from the first report of each on."""

    def __init__(self, stable: str, canary: str) -> None:
        self._versions = (stable, canary)
        #: Per gateway: the identity of its counts, where they stood at first, and where they stand.
        self._read: dict[str, tuple[str, dict[str, Figures], dict[str, Figures]]] = {}
        #: Of counts that are gone: a gateway that started again, or that counts anew.
        self._gone = dict.fromkeys(self._versions, _NOTHING)

    def take(self, gateway: str, report: TrialReport | None, *, joined: bool = False) -> None:
        """A gateway's report. ``joined``: it was not there when the step began, so all it counted is of the step.

        None, or a trial of other versions: nothing is counted there now; what was stays.
        """
        if report is None or (report.stable, report.canary) != self._versions:
            return
        now = {version: Figures.of(report.versions.get(version, VersionReport())) for version in self._versions}
        before = self._read.get(gateway)
        if before is None:
            base = dict.fromkeys(self._versions, _NOTHING) if joined else now
        elif before[0] == report.identity:
            base = before[1]
        else:
            # Counting began anew, and during the step: what had been counted is kept, and all that is told is of it.
            for version in self._versions:
                self._gone[version] = self._gone[version].plus(before[2][version].minus(before[1][version]))
            base = dict.fromkeys(self._versions, _NOTHING)
        self._read[gateway] = (report.identity, base, now)

    def forget_latencies(self) -> None:
        """Those so far are not the step's: answers and failures stay, latencies are counted from here on."""
        for gateway, (identity, base, now) in self._read.items():
            settled = {each: Figures(base[each].requests, base[each].failures, now[each].histogram) for each in base}
            self._read[gateway] = (identity, settled, now)
        for version, gone in self._gone.items():
            self._gone[version] = Figures(gone.requests, gone.failures)

    def figures(self) -> tuple[Figures, Figures]:
        """Of the stable version and of the canary."""
        totals = dict(self._gone)
        for _, base, now in self._read.values():
            for version in self._versions:
                totals[version] = totals[version].plus(now[version].minus(base[version]))
        return totals[self._versions[0]], totals[self._versions[1]]
