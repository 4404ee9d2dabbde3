"""Alerts about models and their versions: served or not, digests, canaries, rollouts, caches, divided models. Pure."""

from __future__ import annotations

from itertools import pairwise

from isochrone.monitoring.recording import VERSION_MEAN, VERSION_P95, VERSION_RATE, of_controller
from isochrone.monitoring.rules import AlertRule, duration, figure
from isochrone.monitoring.thresholds import Thresholds
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

#: Requests per second of a canary below which its p95 of five minutes says nothing: a hundred requests.
_ENOUGH = "0.333"
#: The largest ratio of two neighbouring bounds of the histograms: an interpolated quantile is wrong by at most this.
_BUCKET_STEP = max(upper / lower for lower, upper in pairwise(BUCKET_BOUNDS_NS))


def version_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    digests = 'count by (fleet, model, version, digest) (isochrone_model_info{FLEET, digest!=""})'
    aborted, by = "isochrone_controller_rollout_aborted{FLEET}", "fleet, model, rollout, cause"
    return (
        AlertRule(
            "ModelUnserved",
            f"max by (fleet, model) {of_controller('isochrone_controller_model_served{FLEET}')} == 0",
            60,
            "critical",
            "{{ $labels.model }} is not served",
            "Some or all gateways would not answer a request to {{ $labels.model }}, for a minute. isochrone status"
            " says why.",
            needs_controllers=True,
        ),
        AlertRule(
            "MixedDigests",
            f"count by (fleet, model, version) ({digests}) > 1",
            60,
            "critical",
            "Workers serve different files as {{ $labels.model }} version {{ $labels.version }}",
            "{{ $value }} different digests of {{ $labels.model }} version {{ $labels.version }} are served. Equal"
            " requests may get different answers.",
        ),
        AlertRule(
            "CanaryRegression",
            _canary_is_slower(limits),
            120,
            "warning",
            "The canary of {{ $labels.model }} is slower than the committed version",
            "Requests to {{ $labels.model }} version {{ $labels.version }} take {{ $value | humanizeDuration }}, more"
            f" than {limits.canary_ratio:g} times those to the committed version: their mean, or if only that is"
            " longer, their p95. The evaluation will abort the rollout if that is significant.",
            needs_controllers=True,
        ),
        AlertRule(
            "RolloutStuck",
            f"max by (fleet, model, rollout, state, step) {of_controller('isochrone_controller_rollout{FLEET}')} == 1",
            limits.rollout_seconds,
            "warning",
            "Rollout {{ $labels.rollout }} of {{ $labels.model }} does not advance",
            "Rollout {{ $labels.rollout }} has been {{ $labels.state }} (canary step {{ $labels.step }}) for"
            f" {duration(limits.rollout_seconds)}, longer than the limits in fleet.yaml allow.",
            needs_controllers=True,
        ),
        AlertRule(
            "RolloutAborted",
            # Not the reading of one moment an hour ago: it may be missing.
            f"max by ({by}) {of_controller(aborted)} == 1"
            f" unless max by ({by}) (max_over_time({aborted}[1d] offset 1h)) == 1",
            0,
            "warning",
            "Rollout {{ $labels.rollout }} of {{ $labels.model }} was aborted",
            "Rollout {{ $labels.rollout }} was aborted within the last hour (cause: {{ $labels.cause }}); the version"
            " before it is served.",
            needs_controllers=True,
        ),
        AlertRule(
            "ActivationCacheAlarm",
            "max by (fleet, model, version) (isochrone_activation_cache_alarm{FLEET}) == 1",
            60,
            "warning",
            "The activation cache of {{ $labels.model }} is suspended",
            "The error of reused outputs of {{ $labels.model }} version {{ $labels.version }} exceeds its budget for a"
            " minute. Nothing is reused, so that every request is computed.",
        ),
        AlertRule(
            "CoreAway",
            "min by (fleet, model, version) (isochrone_division_core_answers{FLEET}) == 0",
            60,
            "warning",
            "The core of {{ $labels.model }} does not answer",
            "The core of the divided model {{ $labels.model }} version {{ $labels.version }} has not answered for a"
            " minute. Requests run on the edge alone, as far as it can.",
        ),
        AlertRule(
            "RequestsQuarantined",
            "max by (fleet, model) (isochrone_gateway_quarantined{FLEET}) > 0",
            0,
            "warning",
            "Requests to {{ $labels.model }} end worker processes",
            "{{ $value }} different requests to {{ $labels.model }} are rejected because each of them ended two worker"
            " processes.",
        ),
    )


def _canary_is_slower(limits: Thresholds) -> str:
    """By the means, which are exact; or by the p95s, if no place within their buckets explains the difference."""
    by_mean = _slower(VERSION_MEAN, limits.canary_ratio)
    return f"{by_mean} or {_slower(VERSION_P95, limits.canary_ratio * _BUCKET_STEP**2)}"


def _slower(series: str, ratio: float) -> str:
    canary, committed = (
        "max by (fleet, model, version) "
        + of_controller(f'isochrone_controller_model_share{{FLEET, part="{part}"}}')
        + " > 0"
        for part in ("canary", "committed")
    )
    on = "on (fleet, model, version)"
    return (
        f"({series}{{FLEET}} and {on} ({canary}) and {on} {VERSION_RATE} > {_ENOUGH})"
        f" > on (fleet, model) group_left () {figure(ratio)} * ({series}{{FLEET}} and {on} ({committed}))"
    )
