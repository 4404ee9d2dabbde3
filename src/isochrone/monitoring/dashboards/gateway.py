"""The dashboard of gateways: their own share of the time, what they repeat and reject, workers and agents. Pure."""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import GATEWAYS, Dashboard, Panel, Query, Row, per_second, quantile

_NAME = ', name=~"$gateway"'
_WHOLE = "isochrone_gateway_request_duration_seconds"
_OWN = "isochrone_gateway_own_duration_seconds"
_AGENT = "isochrone_gateway_agent_request_duration_seconds"
_NO_REJECTION = "nothing was rejected"
_NO_ROUND_TRIP = "only Linux tells round trips"
_NO_DECISIONS = "the policy counts no decisions"
_NO_NAMES = "workers and the store have addresses, not names"


def gateway_dashboard() -> Dashboard:
    rows = (_requests(), _resilience(), _workers(), _agents(), _process())
    return Dashboard(
        "gateway", "Isochrone: gateways", "What gateways add, repeat, reject and know of workers.", rows, (GATEWAYS,)
    )


def _requests() -> Row:
    return Row(
        "Requests",
        (
            Panel(
                "By outcome",
                (Query(per_second("outcome", f"{_WHOLE}_count", _NAME), "{{outcome}}"),),
                "reqps",
                "stacked",
            ),
            Panel(
                "The gateway's own share",
                (
                    Query(quantile(0.5, "name", _OWN, _NAME), "{{name}} p50"),
                    Query(quantile(0.99, "name", _OWN, _NAME), "{{name}} p99"),
                ),
                "s",
                text="Time before the request was sent to a worker, and after the worker's answer.",
            ),
            Panel(
                "p99 by gateway",
                (Query(quantile(0.99, "name", _WHOLE, _NAME + ', outcome="answered"'), "{{name}}"),),
                "s",
            ),
            Panel(
                "Waiting rooms",
                (Query(f"sum by (model) (isochrone_gateway_waiting{{FLEET{_NAME}}})", "{{model}}"),),
                kind="stacked",
                text="Requests that wait for a worker now.",
            ),
            Panel(
                "Requests in flight",
                (Query(f"sum by (name) (isochrone_gateway_in_flight{{FLEET{_NAME}}})", "{{name}}"),),
                kind="stacked",
            ),
            Panel(
                "Held by strict switches, p99",
                (
                    Query(
                        quantile(0.99, "name", "isochrone_gateway_hold_seconds", _NAME),
                        "{{name}}",
                        "no strict switch has held requests",
                    ),
                ),
                "s",
            ),
        ),
    )


def _resilience() -> Row:
    return Row(
        "Retries, hedges, rejections",
        (
            Panel(
                "Further attempts",
                tuple(
                    Query(per_second("fleet", f"isochrone_gateway_{name}_total", _NAME), legend)
                    for name, legend in (
                        ("retries", "retries"),
                        ("retries_denied", "retries that the budget denied"),
                        ("hedges", "hedges"),
                        ("failures", "failed attempts"),
                    )
                ),
                "reqps",
            ),
            Panel(
                "Rejections by reason",
                (
                    Query(
                        per_second("reason", "isochrone_gateway_rejections_total", _NAME), "{{reason}}", _NO_REJECTION
                    ),
                ),
                "reqps",
                "stacked",
            ),
            Panel(
                "Admission and tiers",
                tuple(
                    Query(per_second("fleet", f"isochrone_gateway_{name}_total", _NAME), legend)
                    for name, legend in (
                        ("admission_moved", "moved to another worker"),
                        ("admission_rejected", "rejected: no worker in time"),
                        ("admission_probes", "probes"),
                        ("tier_spills", "past the nearest tier"),
                    )
                ),
                "reqps",
            ),
            Panel(
                "Decisions of policies",
                (
                    Query(
                        per_second("policy, decision", "isochrone_gateway_policy_decisions_total", _NAME),
                        "{{policy}}: {{decision}}",
                        _NO_DECISIONS,
                    ),
                ),
                "reqps",
            ),
            Panel(
                "Quarantine",
                (
                    Query(f"max by (model) (isochrone_gateway_quarantined{{FLEET{_NAME}}})", "{{model}} rejected now"),
                    Query(per_second("model", "isochrone_gateway_suspects_total", _NAME), "{{model}} suspects"),
                ),
                text="Requests that ended worker processes.",
            ),
            Panel(
                "Shadow copies",
                (
                    Query(per_second("model", "isochrone_gateway_shadow_copies_total", _NAME), "{{model}}"),
                    Query(
                        per_second("model", "isochrone_gateway_shadow_copies_left_out_total", _NAME),
                        "{{model}} left out",
                    ),
                ),
                "reqps",
            ),
        ),
    )


def _workers() -> Row:
    return Row(
        "Workers as gateways see them",
        (
            Panel(
                "Ejected or unhealthy",
                (
                    Query(f"max by (worker) (isochrone_gateway_worker_ejected{{FLEET{_NAME}}})", "{{worker}} ejected"),
                    Query(
                        f"1 - min by (worker) (isochrone_gateway_worker_healthy{{FLEET{_NAME}}})",
                        "{{worker}} unhealthy",
                    ),
                ),
            ),
            Panel(
                "Requests in flight",
                (Query(f"sum by (worker) (isochrone_gateway_worker_in_flight{{FLEET{_NAME}}})", "{{worker}}"),),
                kind="stacked",
            ),
            Panel(
                "Round trip",
                (
                    Query(
                        f"isochrone_gateway_worker_round_trip_seconds{{FLEET{_NAME}}}",
                        "{{name}} to {{worker}}",
                        _NO_ROUND_TRIP,
                    ),
                ),
                "s",
                text="Over the network and back, by the kernel.",
            ),
        ),
    )


def _agents() -> Row:
    return Row(
        "Agents",
        (
            Panel(
                "Most requests",
                (Query(f"topk(10, {per_second('agent', f'{_AGENT}_count', _NAME)})", "{{agent}}"),),
                "reqps",
                text="An empty name: all agents without series of their own.",
            ),
            Panel("p99", (Query(f"topk(10, {quantile(0.99, 'agent', _AGENT, _NAME)})", "{{agent}}"),), "s"),
            Panel(
                "Most deadline misses",
                (
                    Query(
                        f"topk(10, {per_second('agent', 'isochrone_gateway_agent_deadline_misses_total', _NAME)})",
                        "{{agent}}",
                    ),
                ),
                "reqps",
            ),
        ),
    )


def _process() -> Row:
    lag = "isochrone_event_loop_lag_seconds"
    return Row(
        "Processes",
        (
            Panel(
                "CPU",
                (
                    Query(
                        per_second("name", "process_cpu_seconds_total", f'{_NAME}, role="gateway"'),
                        "{{name}}",
                    ),
                ),
                text="Cores.",
            ),
            Panel(
                "Memory",
                (Query(f'sum by (name) (process_resident_memory_bytes{{FLEET{_NAME}, role="gateway"}})', "{{name}}"),),
                "bytes",
            ),
            Panel(
                "Event loop lag, p99",
                (Query(quantile(0.99, "name", lag, f'{_NAME}, role="gateway"'), "{{name}}"),),
                "s",
            ),
            Panel(
                "Connections",
                (Query(f'sum by (name) (isochrone_connections{{FLEET{_NAME}, role="gateway"}})', "{{name}}"),),
            ),
            Panel(
                "Buffered bytes",
                (Query(f'sum by (name) (isochrone_buffered_bytes{{FLEET{_NAME}, role="gateway"}})', "{{name}}"),),
                "bytes",
            ),
            Panel(
                "Names that do not resolve",
                (
                    Query(
                        f"1 - min by (exported_name) (isochrone_gateway_name_resolves{{FLEET{_NAME}}})",
                        "{{exported_name}}",
                        _NO_NAMES,
                    ),
                ),
            ),
        ),
    )
