"""Alerts about models and their versions: served or not, digests, canaries, rollouts, caches, divided models. Pure."""

from __future__ import annotations

from isochrone.monitoring.recording import VERSION_P95, VERSION_RATE
from isochrone.monitoring.rules import AlertRule, duration, figure
from isochrone.monitoring.thresholds import Thresholds

#: Requests per second of a canary below which its p95 of five minutes says nothing: a hundred requests.
_ENOUGH = "0.333"


def version_alerts(limits: Thresholds) -> tuple[AlertRule, ...]:
    digests = 'count by (fleet, model, version, digest) (isochrone_model_info{FLEET, digest!=""})'
    aborted = "max by (fleet, model, rollout, cause) (isochrone_controller_rollout_aborted{FLEET}"
    return (
        AlertRule(
            "ModelUnserved",
            "max by (fleet, model) (isochrone_controller_model_served{FLEET}) == 0",
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
            "The p95 of {{ $labels.model }} version {{ $labels.version }} is {{ $value | humanizeDuration }}, more than"
            f" {limits.canary_ratio:g} times that of the committed version. The evaluation will abort the rollout if"
            " that is significant.",
            needs_controllers=True,
        ),
        AlertRule(
            "RolloutStuck",
            "max by (fleet, model, rollout, state, step) (isochrone_controller_rollout{FLEET}) == 1",
            limits.rollout_seconds,
            "warning",
            "Rollout {{ $labels.rollout }} of {{ $labels.model }} does not advance",
            "Rollout {{ $labels.rollout }} has been {{ $labels.state }} (canary step {{ $labels.step }}) for"
            f" {duration(limits.rollout_seconds)}, longer than the limits in fleet.yaml allow.",
            needs_controllers=True,
        ),
        AlertRule(
            "RolloutAborted",
            f"{aborted}) == 1 unless {aborted} offset 1h) == 1",
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
    canary, committed = (
        f'max by (fleet, model, version) (isochrone_controller_model_share{{FLEET, part="{part}"}}) > 0'
        for part in ("canary", "committed")
    )
    on, limit = "on (fleet, model, version)", figure(limits.canary_ratio)
    return (
        f"({VERSION_P95}{{FLEET}} and {on} ({canary}) and {on} {VERSION_RATE} > {_ENOUGH})"
        f" > on (fleet, model) group_left () {limit} * ({VERSION_P95}{{FLEET}} and {on} ({committed}))"
    )
