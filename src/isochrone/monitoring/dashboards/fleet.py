"""The dashboard of a whole fleet: what callers see, and what serves them. Pure."""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import Dashboard, Panel, Query, Row, number, per_second, quantile
from isochrone.monitoring.error_budget import BAD_RATIO
from isochrone.monitoring.recording import SLO

_AT_GATEWAYS = "isochrone_gateway_request_duration_seconds"
_AT_WORKERS = "isochrone_request_duration_seconds"
_NO_ALERT = "no alert fires in a fleet that is well"


def fleet_dashboard() -> Dashboard:
    return Dashboard(
        "fleet", "Isochrone: fleet", "All models of a fleet at a glance.", (_now(), _callers(), _serving())
    )


def _now() -> Row:
    outcomes = f"{_AT_GATEWAYS}_count{{FLEET}}"
    bad = f'sum(rate({_AT_GATEWAYS}_count{{FLEET, outcome=~"rejected|deadline_exceeded|failed"}}[$__rate_interval]))'
    return Row(
        "Now",
        (
            number("Requests per second", per_second("fleet", "isochrone_gateway_requests_total", ""), "reqps"),
            number(
                "Not answered",
                f"({bad} or vector(0)) / sum(rate({outcomes}[$__rate_interval]))",
                "percentunit",
                "Share of requests that were rejected, failed, or passed their deadline, at gateways.",
            ),
            number("Workers", 'count(up{FLEET, role="worker"} == 1)'),
            number("Gateways", 'count(up{FLEET, role="gateway"} == 1)'),
            number("Epoch", "max(isochrone_gateway_epoch{FLEET})", text="The committed epoch that gateways serve."),
            number("Alerts", 'count(ALERTS{FLEET, alertstate="firing"}) or vector(0)', text="Alerts that fire now."),
        ),
    )


def _callers() -> Row:
    return Row(
        "What callers see",
        (
            Panel(
                "Requests per second",
                (Query(per_second("model", "isochrone_gateway_requests_total", ""), "{{model}}"),),
                "reqps",
            ),
            Panel(
                "Bad requests",
                (Query(f"{BAD_RATIO}5m{{FLEET}}", "{{model}}"),),
                "percentunit",
                text="Share of requests that were late, failed or were rejected, over five minutes, as the error budget"
                " counts them. Recorded by the rules of isochrone render prometheus.",
            ),
            Panel(
                "p50, p99 and SLO",
                (
                    Query(_latency(0.5), "{{model}} p50"),
                    Query(_latency(0.99), "{{model}} p99"),
                    Query(f"{SLO}{{FLEET}}", "{{model}} SLO"),
                ),
                "s",
                text="As callers see it: the time at gateways; of requests that come without a gateway, that at"
                " workers.",
            ),
        ),
    )


def _latency(share: float) -> str:
    at_gateways = quantile(share, "model", _AT_GATEWAYS, ', outcome="answered"')
    at_workers = quantile(share, "model", _AT_WORKERS, ', stage="request"')
    return f"{at_gateways} or {at_workers}"


def _serving() -> Row:
    return Row(
        "What serves them",
        (
            Panel(
                "Requests that wait at workers",
                (Query("sum by (model) (nv_inference_pending_request_count{FLEET})", "{{model}}"),),
                kind="stacked",
            ),
            Panel(
                "Epoch by gateway",
                (Query("max by (name) (isochrone_gateway_epoch{FLEET})", "{{name}}"),),
                text="Gateways that differ for longer than a moment serve different versions.",
            ),
            Panel(
                "Alerts that fire",
                (
                    Query(
                        'count by (alertname, severity) (ALERTS{FLEET, alertstate="firing"})',
                        "{{alertname}}",
                        _NO_ALERT,
                    ),
                ),
                kind="table",
            ),
            Panel(
                "Versions and digests",
                (Query('count by (model, version, digest) (isochrone_model_info{FLEET, digest!=""})'),),
                kind="table",
                text="Workers per digest. Two digests of one version are different files under one name.",
                width=16,
            ),
            Panel(
                "Workers by pool",
                (Query('count by (pool) (up{FLEET, role="worker"} == 1)', "{{pool}}"),),
            ),
        ),
    )
