"""The dashboard of a model: where its time goes, what is rejected, and its versions side by side. Pure."""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import MODELS, Dashboard, Panel, Query, Row, per_second, quantile
from isochrone.monitoring.error_budget import BAD_RATIO
from isochrone.monitoring.recording import SLO, of_controller

_AT_GATEWAYS = "isochrone_gateway_request_duration_seconds"
_AT_WORKERS = "isochrone_request_duration_seconds"
_MODEL = ', model=~"$model"'
_WHOLE = f'{_MODEL}, stage="request"'
_NOTHING_FAILED = "nothing has failed or was rejected"
_NO_GPU = "rows are padded only for captured CUDA graphs"
_NO_TEXT = "the model generates no text"


def model_dashboard() -> Dashboard:
    rows = (_latencies(), _load(), _rejections(), _versions(), _text())
    return Dashboard("model", "Isochrone: model", "One model: time, load, rejections, versions.", rows, (MODELS,))


def _latencies() -> Row:
    stages = f'{_AT_WORKERS}_sum{{FLEET{_MODEL}, stage!="request"}}'
    return Row(
        "Latencies",
        (
            Panel(
                "As callers see it",
                (
                    Query(quantile(0.5, "model", _AT_GATEWAYS, f'{_MODEL}, outcome="answered"'), "{{model}} p50"),
                    Query(quantile(0.99, "model", _AT_GATEWAYS, f'{_MODEL}, outcome="answered"'), "{{model}} p99"),
                    Query(f"{SLO}{{FLEET{_MODEL}}}", "{{model}} SLO"),
                ),
                "s",
            ),
            Panel(
                "Mean time by stage",
                (
                    Query(
                        f"sum by (stage) (rate({stages}[$__rate_interval]))"
                        f" / on () group_left () sum(rate({_AT_WORKERS}_count{{FLEET{_WHOLE}}}[$__rate_interval]))",
                        "{{stage}}",
                    ),
                ),
                "s",
                "stacked",
                "Where the mean request spends its time on a worker.",
            ),
            Panel(
                "p99 by stage",
                (Query(quantile(0.99, "stage", _AT_WORKERS, _MODEL), "{{stage}}"),),
                "s",
            ),
            Panel(
                "Heat map of latencies",
                (Query(f"sum by (le) (increase({_AT_GATEWAYS}_bucket{{FLEET{_MODEL}}}[$__rate_interval]))", "{{le}}"),),
                "s",
                "heatmap",
                "Requests of every outcome, as callers see them.",
                width=24,
                height=10,
            ),
        ),
    )


def _load() -> Row:
    return Row(
        "Load",
        (
            Panel(
                "Queue",
                (Query(f"sum by (name) (nv_inference_pending_request_count{{FLEET{_MODEL}}})", "{{name}}"),),
                kind="stacked",
                text="Requests that wait now, by worker.",
            ),
            Panel(
                "Mean batch",
                (
                    Query(
                        f"{per_second('model, version', 'nv_inference_count', _MODEL)}"
                        f" / {per_second('model, version', 'nv_inference_exec_count', _MODEL)}",
                        "{{model}} {{version}}",
                    ),
                ),
                text="Rows per run of the model.",
            ),
            Panel(
                "Padded rows per second",
                (
                    Query(
                        per_second("model, version", "isochrone_padded_rows_total", _MODEL),
                        "{{model}} {{version}}",
                        _NO_GPU,
                    ),
                ),
                text="Rows that a GPU computes for nothing: batches are padded to the size of a captured graph.",
            ),
            Panel(
                "Response cache",
                (
                    Query(
                        f"{per_second('model', 'nv_cache_num_hits_per_model', _MODEL)} / ("
                        f"{per_second('model', 'nv_cache_num_hits_per_model', _MODEL)}"
                        f" + {per_second('model', 'nv_cache_num_misses_per_model', _MODEL)})",
                        "{{model}}",
                        "the model has no response cache",
                    ),
                ),
                "percentunit",
                text="Share of requests that the cache answered.",
            ),
            Panel(
                "Rows per second by worker",
                (Query(per_second("name", "nv_inference_count", _MODEL), "{{name}}"),),
                kind="stacked",
            ),
            Panel(
                "Error budget",
                tuple(
                    Query(f"{BAD_RATIO}{window}{{FLEET{_MODEL}}}", "{{model}} " + window)
                    for window in ("5m", "1h", "6h", "3d")
                ),
                "percentunit",
                text="Share of bad requests over windows. The alerts compare them with the budget.",
            ),
        ),
    )


def _rejections() -> Row:
    return Row(
        "Failures and rejections",
        (
            Panel(
                "By outcome, as callers see it",
                (Query(per_second("outcome", f"{_AT_GATEWAYS}_count", _MODEL), "{{outcome}}"),),
                "reqps",
                "stacked",
            ),
            Panel(
                "Rejected by gateways, by reason",
                (
                    Query(
                        per_second("reason", "isochrone_gateway_rejections_total", _MODEL),
                        "{{reason}}",
                        _NOTHING_FAILED,
                    ),
                ),
                "reqps",
                "stacked",
                "deadline_exceeded: the deadline passed or could not be met; worker: no worker took it.",
            ),
            Panel(
                "Failed at workers, by code",
                (
                    Query(
                        per_second("code, taken", "isochrone_request_failures_total", _MODEL),
                        "{{code}}, taken: {{taken}}",
                        _NOTHING_FAILED,
                    ),
                ),
                "reqps",
                "stacked",
                "Attempts: another worker may have answered. taken: false: rejected before it was queued.",
            ),
        ),
    )


def _versions() -> Row:
    failed = per_second("model, version", "isochrone_request_failures_total", _MODEL)
    answered = per_second("model, version", f"{_AT_WORKERS}_count", _WHOLE)
    return Row(
        "Versions side by side",
        (
            Panel(
                "Requests per second",
                (Query(answered, "{{model}} {{version}}"),),
                "reqps",
            ),
            Panel(
                "p50 and p99",
                (
                    Query(quantile(0.5, "model, version", _AT_WORKERS, _WHOLE), "{{model}} {{version}} p50"),
                    Query(quantile(0.99, "model, version", _AT_WORKERS, _WHOLE), "{{model}} {{version}} p99"),
                ),
                "s",
                text="On workers: time that the version itself is the reason of.",
            ),
            Panel(
                "Failed attempts",
                (
                    Query(
                        f"{failed} / ({answered} + {failed})",
                        "{{model}} {{version}}",
                        _NOTHING_FAILED,
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Share of the traffic",
                (
                    Query(
                        "max by (model, version, part) "
                        + of_controller(f"isochrone_controller_model_share{{FLEET{_MODEL}}}"),
                        "{{model}} {{version}} ({{part}})",
                    ),
                ),
                "percentunit",
                text="As the controllers have it: the committed version and the canary.",
            ),
            Panel(
                "Workers with the version",
                (Query(f"count by (model, version) (isochrone_model_info{{FLEET{_MODEL}}})", "{{model}} {{version}}"),),
            ),
            Panel(
                "p99 as callers see it",
                (
                    Query(
                        quantile(0.99, "model, version", _AT_GATEWAYS, f'{_MODEL}, outcome="answered"'),
                        "{{model}} {{version}}",
                    ),
                ),
                "s",
            ),
        ),
    )


def _text() -> Row:
    first, next_ = (f"isochrone_generation_{each}_seconds" for each in ("time_to_first_token", "inter_token"))
    return Row(
        "Text generation",
        (
            Panel(
                "Tokens per second",
                (Query(per_second("model", "isochrone_generation_tokens_total", _MODEL), "{{model}}", _NO_TEXT),),
            ),
            Panel(
                "First token and further tokens, p99",
                (
                    Query(quantile(0.99, "model", first, _MODEL), "{{model}} first", _NO_TEXT),
                    Query(quantile(0.99, "model", next_, _MODEL), "{{model}} further", _NO_TEXT),
                ),
                "s",
            ),
            Panel(
                "Sequences",
                (
                    Query(f"sum by (model) (isochrone_generation_running{{FLEET{_MODEL}}})", "{{model}} run", _NO_TEXT),
                    Query(
                        f"sum by (model) (isochrone_generation_waiting{{FLEET{_MODEL}}})", "{{model}} wait", _NO_TEXT
                    ),
                ),
            ),
        ),
    )
