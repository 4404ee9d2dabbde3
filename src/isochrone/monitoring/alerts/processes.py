"""Alerts about the fleet's processes and its store. Pure.

A worker or gateway is down if it is expected and not registered, or if its metrics page cannot be read. Where the
controllers name the targets, a lost process is no target any more, so that the first condition is needed. A page that
nobody serves any more on purpose is no loss: the second condition is for processes that the controller has.
"""

from __future__ import annotations

from isochrone.monitoring.recording import CONTROLLER, of_controller
from isochrone.monitoring.rules import AlertRule

#: Shares of five minutes: of healthy readings, below which a worker counts as unhealthy, and of ejections.
_HEALTHY, _EJECTED = "0.5", "0.3"


def process_alerts(*, with_controllers: bool) -> tuple[AlertRule, ...]:
    return (
        AlertRule(
            "WorkerDown",
            _down("worker", "fleet, pool, worker", with_controllers=with_controllers),
            60,
            "warning",
            "Worker {{ $labels.worker }} is down",
            "Worker {{ $labels.worker }} is expected and is not registered, or its metrics page cannot be read, for a"
            " minute. The remaining workers have its load.",
        ),
        AlertRule(
            "GatewayDown",
            _down("gateway", "fleet, gateway", with_controllers=with_controllers),
            60,
            "critical",
            "Gateway {{ $labels.gateway }} is down",
            "Gateway {{ $labels.gateway }} is expected and is not registered, or its metrics page cannot be read, for a"
            " minute. If it has ended, callers that use its address get no answer. Strict rollouts wait for it.",
        ),
        AlertRule(
            "ControllerDown",
            'up{FLEET, role="controller"} == 0',
            60,
            "warning",
            "Controller {{ $labels.name }} is down",
            "The metrics page of controller {{ $labels.name }} cannot be read for a minute. Requests are served without"
            " controllers; rollouts, autoscaling and recovery need one.",
            needs_controllers=True,
        ),
        AlertRule(
            "NoLeader",
            f"max by (fleet) {of_controller('isochrone_controller_has_leader{FLEET}')} == 0"
            f" or absent({CONTROLLER}{{FLEET}})",
            120,
            "critical",
            "No controller leads the fleet {{ $labels.fleet }}",
            "No controller of the fleet {{ $labels.fleet }} leads, none reaches the store, or none can be read, for two"
            " minutes. Requests are served; nothing is rolled out, scaled or repaired.",
            needs_controllers=True,
        ),
        AlertRule(
            "StoreUnreachable",
            _store_is_away(with_controllers=with_controllers),
            60,
            "critical",
            "{{ $labels.name }} does not reach the store",
            "The {{ $labels.role }} {{ $labels.name }} has no connection to the store for a minute. It continues with"
            " the last epoch that it knows.",
        ),
        AlertRule(
            "GatewayStale",
            "isochrone_gateway_epoch{FLEET}"
            f" < on (fleet) group_left () max by (fleet) {of_controller('isochrone_controller_epoch{FLEET}')}",
            60,
            "critical",
            "Gateway {{ $labels.name }} serves an old epoch",
            "Gateway {{ $labels.name }} serves epoch {{ $value }} for a minute after another was committed. Its callers"
            " may get versions that were replaced.",
            needs_controllers=True,
        ),
        AlertRule(
            "WorkerUnhealthy",
            _is_avoided(),
            120,
            "warning",
            "Gateways do not use worker {{ $labels.worker }}",
            "At least one gateway has sent no requests to worker {{ $labels.worker }} for much of the last five"
            " minutes: it fails its health checks, or was ejected as an outlier, perhaps again and again.",
        ),
    )


def _store_is_away(*, with_controllers: bool) -> str:
    roles = ("controller", "gateway") if with_controllers else ("gateway",)
    return " or ".join(f"isochrone_{role}_store_connected{{FLEET}} == 0" for role in roles)


def _is_avoided() -> str:
    """By shares of the time: an ejection ends by itself and comes back, and a check may succeed once. A worker that was
    retired has no series now."""
    healthy, ejected = (f"isochrone_gateway_worker_{each}{{FLEET}}" for each in ("healthy", "ejected"))
    return (
        f"min by (fleet, worker) (avg_over_time({healthy}[5m]) and {healthy}) < {_HEALTHY}"
        f" or max by (fleet, worker) (avg_over_time({ejected}[5m]) and {ejected}) > {_EJECTED}"
    )


def _down(role: str, labels: str, *, with_controllers: bool) -> str:
    named = f'label_replace(up{{FLEET, role="{role}"}}, "{role}", "$1", "name", "(.*)")'
    unreadable = f"max by ({labels}) ({named}) == 0"
    if not with_controllers:
        return unreadable
    registered = f"max by ({labels}) {of_controller(f'isochrone_controller_{role}_registered{{FLEET}}')}"
    return f"{registered} == 0 or ({unreadable} and on (fleet, {role}) {registered})"
