"""The dashboard of the control plane: leader, store, rollouts, and what runs where. Pure.

What all controllers should agree on is that of the controller that alerts believe.
"""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import Dashboard, Panel, Query, Row, number, per_second
from isochrone.monitoring.recording import of_controller

_LEADER, _WORKERS, _GATEWAYS, _SERVED, _SHARE, _ROLLOUT, _ABORTED = (
    of_controller(f"isochrone_controller_{name}{{FLEET}}")
    for name in (
        "has_leader",
        "worker_registered",
        "gateway_registered",
        "model_served",
        "model_share",
        "rollout",
        "rollout_aborted",
    )
)
_NO_ROLLOUT = "no rollout is under way"
_NO_ABORT = "no rollout was aborted"


def control_plane_dashboard() -> Dashboard:
    rows = (_now(), _rollouts(), _placement(), _processes())
    return Dashboard("control-plane", "Isochrone: control plane", "Leader, store, rollouts, placement.", rows)


def _now() -> Row:
    return Row(
        "Now",
        (
            number("Leader", f"max{_LEADER} or vector(0)", text="1: a controller leads, and reaches the store."),
            number("Epoch", "max(isochrone_controller_epoch{FLEET})"),
            number("Controllers", 'count(up{FLEET, role="controller"} == 1)'),
            number(
                "Without the store",
                "count(isochrone_controller_store_connected{FLEET} == 0"
                " or isochrone_gateway_store_connected{FLEET} == 0) or vector(0)",
                text="Controllers and gateways that do not reach the store.",
            ),
            number(
                "Missing processes",
                f"sum(1 - max by (worker) {_WORKERS}) + sum(1 - max by (gateway) {_GATEWAYS})",
                text="Workers and gateways that are expected and not registered.",
            ),
            number(
                "Models not served",
                f"count(max by (model) {_SERVED} == 0) or vector(0)",
            ),
        ),
    )


def _rollouts() -> Row:
    return Row(
        "Rollouts",
        (
            Panel(
                "Under way",
                (
                    Query(
                        f"max by (rollout, model, state, step) {_ROLLOUT}",
                        "{{rollout}} {{model}}: {{state}} {{step}}",
                        _NO_ROLLOUT,
                    ),
                ),
                kind="table",
            ),
            Panel(
                "Share of the traffic",
                (
                    Query(
                        f"max by (model, version, part) {_SHARE}",
                        "{{model}} {{version}} ({{part}})",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Aborted",
                (
                    Query(
                        f"max by (rollout, model, cause) {_ABORTED}",
                        "{{rollout}} {{model}}: {{cause}}",
                        _NO_ABORT,
                    ),
                ),
                kind="table",
            ),
            Panel(
                "Epochs",
                (
                    Query("max by (name) (isochrone_controller_epoch{FLEET})", "{{name}}"),
                    Query("max by (name) (isochrone_gateway_epoch{FLEET})", "{{name}}"),
                ),
                text="A line below the others is a process that has not followed.",
                width=12,
            ),
            Panel(
                "Committed versions at gateways",
                (Query("max by (model) (isochrone_gateway_version{FLEET})", "{{model}}"),),
                width=12,
            ),
        ),
    )


def _placement() -> Row:
    return Row(
        "Placement",
        (
            Panel(
                "Models and versions by worker",
                (Query("max by (name, model, version) (isochrone_model_info{FLEET})"),),
                kind="table",
                width=12,
            ),
            Panel(
                "Registered workers by pool",
                (
                    Query(
                        f"sum by (pool) (max by (pool, worker) {_WORKERS})",
                        "{{pool}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "Expected workers by pool",
                (
                    Query(
                        f"count by (pool) (max by (pool, worker) {_WORKERS})",
                        "{{pool}}",
                    ),
                ),
                width=6,
            ),
        ),
    )


def _processes() -> Row:
    connected = "max by (name) (isochrone_{role}_store_connected{{FLEET}})"
    return Row(
        "Processes",
        (
            Panel(
                "Connected to the store",
                (
                    Query(connected.format(role="controller"), "{{name}}"),
                    Query(connected.format(role="gateway"), "{{name}}"),
                ),
            ),
            Panel(
                "CPU of controllers",
                (Query(per_second("name", "process_cpu_seconds_total", ', role="controller"'), "{{name}}"),),
                text="Cores.",
            ),
            Panel(
                "Memory of controllers",
                (Query('sum by (name) (process_resident_memory_bytes{FLEET, role="controller"})', "{{name}}"),),
                "bytes",
            ),
        ),
    )
