"""The gateways' counts of two versions, summed over all gateways since a canary step began. Pure.

Gateways join, leave and restart, and count from their own start; ``Tally`` takes their reports and keeps what was
counted since the first one. ``judging`` judges the resulting ``Figures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isochrone.gateway.evaluation.counts import EvaluationReport, VersionReport, bucket_bounds


@dataclass(frozen=True, slots=True)
class Figures:
    """The counts of one version."""

    #: Answers, including failures.
    requests: int = 0
    failures: int = 0
    #: Latencies of successful answers: bucket (``gateway.evaluation.counts``) → count.
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
        """The counts since an earlier reading."""
        histogram = {
            bucket: count - earlier.histogram.get(bucket, 0)
            for bucket, count in self.histogram.items()
            if count > earlier.histogram.get(bucket, 0)
        }
        return Figures(self.requests - earlier.requests, self.failures - earlier.failures, histogram)

    def quantile(self, share: float) -> float:
        """The latency in ns that ``share`` of the answers do not exceed; 0 if there are none."""
        rank = share * sum(self.histogram.values())
        passed = 0
        for bucket, count in sorted(self.histogram.items()):
            if passed + count >= rank:
                # Linear interpolation inside the bucket.
                low, high = bucket_bounds(bucket)
                return low + (high - low) * (rank - passed) / count
            passed += count
        return 0.0


_NOTHING = Figures()


class Tally:
    """Both versions over all gateways, from each gateway's first report on."""

    def __init__(self, stable: str, canary: str) -> None:
        self._versions = (stable, canary)
        #: Per gateway: the identity of its counts, their first reading and their last.
        self._read: dict[str, tuple[str, dict[str, Figures], dict[str, Figures]]] = {}
        #: Counts that ended: the gateway restarted, or reset them.
        self._gone = dict.fromkeys(self._versions, _NOTHING)

    def take(self, gateway: str, report: EvaluationReport | None, *, joined: bool = False) -> None:
        """Add a gateway's report. ``joined``: the gateway joined after the step began, so all its counts are of the
        step.

        None, or a report on other versions: the gateway counts nothing now; its earlier counts stay.
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
            # The counts were reset during the step: the earlier ones are kept, and all the new ones are of the step.
            for version in self._versions:
                self._gone[version] = self._gone[version].plus(before[2][version].minus(before[1][version]))
            base = dict.fromkeys(self._versions, _NOTHING)
        self._read[gateway] = (report.identity, base, now)

    def forget_latencies(self) -> None:
        """Discard the latencies so far; answers and failures stay."""
        for gateway, (identity, base, now) in self._read.items():
            settled = {each: Figures(base[each].requests, base[each].failures, now[each].histogram) for each in base}
            self._read[gateway] = (identity, settled, now)
        for version, gone in self._gone.items():
            self._gone[version] = Figures(gone.requests, gone.failures)

    def figures(self) -> tuple[Figures, Figures]:
        """The figures of the stable version and of the canary."""
        totals = dict(self._gone)
        for _, base, now in self._read.values():
            for version in self._versions:
                totals[version] = totals[version].plus(now[version].minus(base[version]))
        return totals[self._versions[0]], totals[self._versions[1]]
