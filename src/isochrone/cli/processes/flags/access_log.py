"""Flags of the access log and of metrics, which gateways and workers share."""

from __future__ import annotations

from typing import Annotated

import typer

AccessLogOption = Annotated[
    str,
    typer.Option(
        metavar="SHARE|off",
        help="Log a share of requests as JSON lines, 0 to 1, and every failed or late one, up to 100 a second; never"
        " the payload. 0: failures alone.",
    ),
]
AccessLogFileOption = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="With --access-log: the file; it may be moved away while the process runs: it is opened again.",
        show_default="standard output",
    ),
]
#: To measure what counting costs (bench.observe_cost).
LatencyHistogramsOption = Annotated[
    bool, typer.Option("--latency-histograms/--no-latency-histograms", hidden=True, help="Count latencies of requests.")
]
MetricsOtlpOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Export the figures of /metrics over OTLP: http://HOST:4318/v1/metrics, or grpc://HOST:4317.",
        show_default="off",
    ),
]
MetricsOtlpSecondsOption = Annotated[
    float, typer.Option(help="With --metrics-otlp: seconds between two exports.", min=0.1)
]
