"""One examination of the machine: read, measure, check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from isochrone.doctor.checks.catalog import findings_of
from isochrone.doctor.facts import Facts, Measured, Unknown
from isochrone.doctor.findings import Finding, Severity
from isochrone.doctor.measuring.all_times import measure
from isochrone.doctor.reading.machine import read_facts
from isochrone.doctor.reading.tree import Tree


@dataclass(frozen=True, slots=True)
class Examination:
    measured: Measured
    findings: tuple[Finding, ...]

    @property
    def costs_latency(self) -> bool:
        return any(finding.severity is Severity.COSTS for finding in self.findings)

    def finding(self, check: str) -> Finding:
        return next(each for each in self.findings if each.check == check)


def examine(tree: Tree, report: Callable[[str], None], *, measuring: bool = True) -> Examination:
    """``report`` gets a line before each part. Without ``measuring``, only settings and counters are read."""
    report("reading settings")
    facts = read_facts(tree)
    measured = Measured()
    if measuring:
        measured = measure(facts, report)
        earlier, facts = facts, read_facts(tree)
        measured = with_growth(measured, earlier, facts)
    return Examination(measured, findings_of(facts, measured))


def with_growth(measured: Measured, earlier: Facts, later: Facts) -> Measured:
    """The times, and how much counters grew meanwhile."""
    return replace(
        measured,
        listen_overflows=_growth(earlier.network.listen_overflows, later.network.listen_overflows),
        swapped_in=_growth(earlier.memory.swapped_in, later.memory.swapped_in),
        throttled_ms=_throttled(later) - _throttled(earlier),
    )


def _growth(earlier: int | Unknown, later: int | Unknown) -> int | None:
    if isinstance(earlier, Unknown) or isinstance(later, Unknown):
        return None
    return later - earlier


def _throttled(facts: Facts) -> float:
    quotas = facts.cpu.quotas
    return 0.0 if isinstance(quotas, Unknown) else max((quota.throttled_ms for quota in quotas), default=0.0)
