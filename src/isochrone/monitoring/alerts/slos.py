"""Alerts about what callers see: latencies over the SLO, and the rate at which the error budget burns. Pure."""

from __future__ import annotations

from isochrone.monitoring.error_budget import BAD_RATIO
from isochrone.monitoring.recording import LATE_RATIO, RATE
from isochrone.monitoring.rules import AlertRule, figure
from isochrone.monitoring.thresholds import Thresholds

#: Requests per second below which a p99 of five minutes says nothing: a hundred requests.
_ENOUGH = "0.333"
#: Share of requests beyond the SLO that makes their p99 exceed it. A p99 that is interpolated between two bounds of the
#: histogram, up to two thirds apart, is not compared with it.
_SLOWEST = "0.01"
#: Of the SRE workbook, for a budget of 30 days: factors of the budget's even spending, with the long and the short
#: window of each. Two percent of the budget in an hour, five in six hours; a tenth in a day, or in three.
_FAST = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
_SLOW = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))

#: A share of bad requests that is an outage, whatever the objective.
_OUTAGE = 0.9


def slo_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    objective = f"{limits.objective * 100:g} %"
    return (
        AlertRule(
            "LatencyOverSlo",
            f"{LATE_RATIO}{{FLEET}} > {_SLOWEST} and on (fleet, model) {RATE} > {_ENOUGH}",
            300,
            "warning",
            "p99 of {{ $labels.model }} is over its SLO",
            "{{ $value | humanizePercentage }} of the answers of {{ $labels.model }} took longer than its SLO, over the"
            " last five minutes; 1% may. Gateways measure it as callers see it; without gateways, workers do.",
        ),
        AlertRule(
            "ErrorBudgetBurnsFast",
            _burns(_FAST, limits),
            120,
            "critical",
            "{{ $labels.model }} spends its error budget fast",
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} were late, failed or were"
            f" rejected. The objective is {objective} in time: at this rate, the budget of 30 days is spent in"
            f" {_days(limits):.3g} days or less.",
        ),
        AlertRule(
            "ErrorBudgetBurnsSlowly",
            _burns(_SLOW, limits),
            900,
            "warning",
            "{{ $labels.model }} spends its error budget faster than it earns it",
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} were late, failed or were"
            f" rejected over a day or more. The objective is {objective} in time: the budget of 30 days will not last.",
        ),
    )


def _burns(steps: tuple[tuple[float, str, str], ...], limits: Thresholds) -> str:
    return " or ".join(
        f"({BAD_RATIO}{long}{{FLEET}} > {limit} and {BAD_RATIO}{short}{{FLEET}} > {limit})"
        for factor, long, short in steps
        for limit in (figure(_limit(factor, limits)),)
    )


def _limit(factor: float, limits: Thresholds) -> float:
    """The share of bad requests that burns the budget so fast. With a large budget no share would: then it is one that
    an outage exceeds, and even spending does not."""
    budget = 1 - limits.objective
    return min(factor * budget, _OUTAGE + (1 - _OUTAGE) * budget)


def _days(limits: Thresholds) -> float:
    """A budget of 30 days lasts at most so long when the fast alert fires."""
    budget = 1 - limits.objective
    return 30 * budget / min(_limit(factor, limits) for factor, _, _ in _FAST)
