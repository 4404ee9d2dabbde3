"""Alerts about what callers see: latencies over the SLO, and the rate at which the error budget burns. Pure."""

from __future__ import annotations

from isochrone.monitoring.recording import BAD_RATIO, P99, RATE, SLO
from isochrone.monitoring.rules import AlertRule, figure
from isochrone.monitoring.thresholds import Thresholds

#: Requests per second below which a p99 of five minutes says nothing: a hundred requests.
_ENOUGH = "0.333"
#: Of the SRE workbook, for a budget of 30 days: factors of the budget's even spending, with the long and the short
#: window of each. Two percent of the budget in an hour, five in six hours; a tenth in a day, or in three.
_FAST = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
_SLOW = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))


def slo_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    objective = f"{limits.objective * 100:g} %"
    return (
        AlertRule(
            "LatencyOverSlo",
            f"{P99}{{FLEET}} > on (fleet, model) {SLO} and on (fleet, model) {RATE} > {_ENOUGH}",
            300,
            "warning",
            "p99 of {{ $labels.model }} is over its SLO",
            "The slowest 1 % of the requests to {{ $labels.model }} took longer than {{ $value | humanizeDuration }} on"
            " the workers, over the last five minutes. That is longer than the deadline of the model.",
        ),
        AlertRule(
            "ErrorBudgetBurnsFast",
            _burns(_FAST, limits),
            120,
            "critical",
            "{{ $labels.model }} spends its error budget fast",
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} were late, failed or were"
            f" rejected. The objective is {objective} in time: at this rate, the budget of 30 days is spent in five"
            " days or less.",
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
    budget = 1 - limits.objective
    return " or ".join(
        f"({BAD_RATIO}{long}{{FLEET}} > {limit} and {BAD_RATIO}{short}{{FLEET}} > {limit})"
        for factor, long, short in steps
        for limit in (figure(factor * budget),)
    )
