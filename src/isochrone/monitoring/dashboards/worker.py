"""The dashboard of workers and their machines: CPU, memory, event loops, GPUs. Pure."""

from __future__ import annotations

from isochrone.monitoring.dashboards.layout import WORKERS, Dashboard, Panel, Query, Row, per_second, quantile

_NAME = ', role="worker", name=~"$worker"'
_NO_GPU = "the machine has no NVIDIA GPU"
_ONE_PROCESS = "the worker runs in one process (--processes)"
_NO_TLS = "the worker has no TLS"


def worker_dashboard() -> Dashboard:
    rows = (_process(), _connections(), _machine(), _gpus())
    return Dashboard(
        "worker", "Isochrone: workers and machines", "Workers, the machines they run on, GPUs.", rows, (WORKERS,)
    )


def _process() -> Row:
    lag = "isochrone_event_loop_lag_seconds"
    return Row(
        "Workers",
        (
            Panel("CPU", (Query(per_second("name", "process_cpu_seconds_total", _NAME), "{{name}}"),), text="Cores."),
            Panel(
                "Memory",
                (Query(f"sum by (name) (process_resident_memory_bytes{{FLEET{_NAME}}})", "{{name}}"),),
                "bytes",
            ),
            Panel(
                "Event loop lag",
                (
                    Query(quantile(0.5, "name", lag, _NAME), "{{name}} p50"),
                    Query(quantile(0.99, "name", lag, _NAME), "{{name}} p99"),
                ),
                "s",
                text="How late the event loop runs due work. Every request of the process waits that long.",
            ),
            Panel(
                "Requests that wait",
                (Query(f"sum by (name) (nv_inference_pending_request_count{{FLEET{_NAME}}})", "{{name}}"),),
            ),
            Panel(
                "Requests per second",
                (Query(per_second("name", "nv_inference_request_success", _NAME), "{{name}}"),),
                "reqps",
            ),
            Panel(
                "Restarts of processes",
                (
                    Query(
                        f"sum by (name, process) (isochrone_process_restarts_total{{FLEET{_NAME}}})",
                        "{{name}} process {{process}}",
                        _ONE_PROCESS,
                    ),
                ),
            ),
        ),
    )


def _connections() -> Row:
    return Row(
        "Connections",
        (
            Panel(
                "Connections",
                (
                    Query(f"sum by (name) (isochrone_connections{{FLEET{_NAME}}})", "{{name}}"),
                    Query(f"sum by (name) (isochrone_connections_stalled{{FLEET{_NAME}}})", "{{name}} stalled"),
                ),
            ),
            Panel(
                "Buffered bytes",
                (
                    Query(f"sum by (name) (isochrone_buffered_bytes{{FLEET{_NAME}}})", "{{name}}"),
                    Query(f"sum by (name) (isochrone_buffered_limit_bytes{{FLEET{_NAME}}})", "{{name}} limit"),
                ),
                "bytes",
            ),
            Panel(
                "Certificates: time left",
                (
                    Query(
                        f"min by (name) (isochrone_certificate_expiry_timestamp_seconds{{FLEET{_NAME}}}) - time()",
                        "{{name}}",
                        _NO_TLS,
                    ),
                ),
                "s",
            ),
        ),
    )


def _machine() -> Row:
    used, total = (f"nv_cpu_memory_{each}_bytes{{FLEET{_NAME}}}" for each in ("used", "total"))
    return Row(
        "Machines",
        (
            Panel(
                "CPU of the machine",
                (Query(f"max by (name) (nv_cpu_utilization{{FLEET{_NAME}}})", "{{name}}"),),
                "percentunit",
                text="All programs of the machine that the worker runs on.",
            ),
            Panel(
                "Memory of the machine",
                (Query(f"max by (name) ({used}) / max by (name) ({total})", "{{name}}"),),
                "percentunit",
            ),
            Panel(
                "Open files",
                (Query(f"sum by (name) (process_open_fds{{FLEET{_NAME}}})", "{{name}}"),),
            ),
        ),
    )


def _gpus() -> Row:
    used, total = (f"nv_gpu_memory_{each}_bytes{{FLEET{_NAME}}}" for each in ("used", "total"))
    return Row(
        "GPUs",
        (
            Panel(
                "Utilization",
                (Query(f"max by (gpu_uuid) (nv_gpu_utilization{{FLEET{_NAME}}})", "{{gpu_uuid}}", _NO_GPU),),
                "percentunit",
            ),
            Panel(
                "Memory",
                (Query(f"max by (gpu_uuid) ({used}) / max by (gpu_uuid) ({total})", "{{gpu_uuid}}", _NO_GPU),),
                "percentunit",
            ),
            Panel(
                "Power",
                (Query(f"max by (gpu_uuid) (nv_gpu_power_usage{{FLEET{_NAME}}})", "{{gpu_uuid}}", _NO_GPU),),
                "watt",
            ),
            Panel(
                "Memory by holding",
                (
                    Query(
                        f"sum by (device, holding) (isochrone_device_memory_bytes{{FLEET{_NAME}}})",
                        "{{device}} {{holding}}",
                        _NO_GPU,
                    ),
                ),
                "bytes",
                "stacked",
                width=12,
            ),
            Panel(
                "Captured graphs",
                (
                    Query(
                        f"sum by (model, version) (isochrone_captured_graphs{{FLEET{_NAME}}})",
                        "{{model}} {{version}}",
                        _NO_GPU,
                    ),
                ),
                width=12,
            ),
        ),
    )
