"""All checks, and the findings of one machine."""

from __future__ import annotations

from isochrone.doctor.checks import cpu, gpu, limits, memory, network, placement
from isochrone.doctor.checks.check import Check
from isochrone.doctor.facts import Facts, Measured
from isochrone.doctor.findings import Finding, Severity

CHECKS: tuple[Check, ...] = (
    *network.CHECKS,
    *cpu.CHECKS,
    *placement.CHECKS,
    *memory.CHECKS,
    *limits.CHECKS,
    *gpu.CHECKS,
)


def findings_of(facts: Facts, measured: Measured) -> tuple[Finding, ...]:
    """The gravest first."""
    order = list(Severity)
    return tuple(sorted((check(facts, measured) for check in CHECKS), key=lambda each: order.index(each.severity)))
