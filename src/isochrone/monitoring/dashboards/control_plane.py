"""The dashboard of the control plane: leader, store, rollouts, and what runs where. Pure."""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import Dashboard, Panel, Query, Row, number, per_second

_NO_ROLLOUT = "no rollout is under way"
_NO_ABORT = "no rollout was aborted"


def control_plane_dashboard() -> Dashboard:
    rows = (_now(), _rollouts(), _placement(), _processes())
    return Dashboard("control-plane", "Isochrone: control plane", "Leader, store, rollouts, placement.", rows)


def _now() -> Row:
    return Row(
        "Now",
        (
            number("Leader", "max(isochrone_controller_has_leader{FLEET})", text="1: a controller leads."),
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
                "sum(1 - max by (worker) (isochrone_controller_worker_registered{FLEET}))"
                " + sum(1 - max by (gateway) (isochrone_controller_gateway_registered{FLEET}))",
                text="Workers and gateways that are expected and not registered.",
            ),
            number(
                "Models not served",
                "count(max by (model) (isochrone_controller_model_served{FLEET}) == 0) or vector(0)",
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
                        "max by (rollout, model, state, step) (isochrone_controller_rollout{FLEET})",
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
                        "max by (model, version, part) (isochrone_controller_model_share{FLEET})",
                        "{{model}} {{version}} ({{part}})",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Aborted",
                (
                    Query(
                        "max by (rollout, model, cause) (isochrone_controller_rollout_aborted{FLEET})",
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
                        "sum by (pool) (max by (pool, worker) (isochrone_controller_worker_registered{FLEET}))",
                        "{{pool}}",
                    ),
                ),
                width=6,
            ),
            Panel(
                "Expected workers by pool",
                (
                    Query(
                        "count by (pool) (max by (pool, worker) (isochrone_controller_worker_registered{FLEET}))",
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
