"""The section ``observability`` of fleet.yaml: metrics, traces, logs and the flight recorder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from isochrone.control.fleet.settings.quantities import Share
from isochrone.settings.sections import Section


class Metrics(Section):
    """Metrics of all processes. Not used yet."""

    enabled: bool = True
    """Whether processes serve /metrics."""


class Tracing(Section):
    """Traces of all gateways and workers."""

    otlp: str = ""
    """OTLP endpoint, such as http://collector:4318/v1/traces, or http://collector:4317 with protocol grpc. The default
    is none: nothing is traced."""
    protocol: Literal["http", "grpc"] = "http"
    """How traces are sent."""
    sample: Share = 0.01
    """Share of requests to trace, beside deadline misses, errors and the slowest of each minute."""


class AccessLog(Section):
    """The access log of all gateways and workers: JSON lines on their standard output, or in files."""

    share: Share | None = None
    """Share of requests to log, 0 to 1, beside failed and late ones. The default is no access log."""
    directory: str = ""
    """Directory of the files, PROCESS.access.log each, on the machine of the process. The default is standard
    output."""


class Log(Section):
    """Logs. Not used yet."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level to log."""
    as_json: bool = Field(default=False, alias="json")
    """Whether to write lines as JSON."""


class Recorder(Section):
    """The flight recorder of gateways and workers, which isochrone why reads."""

    requests: Annotated[int, Field(ge=0, le=1 << 20)] = 4096
    """The last requests that each process keeps in memory; 0: none."""
    dump: str = ""
    """Absolute path of a directory to which each process appends requests that miss their deadline. The default is
    none."""

    @field_validator("dump", mode="after")
    @classmethod
    def _is_absolute(cls, dump: str, info: ValidationInfo) -> str:
        if dump and not dump.startswith("/"):
            raise ValueError(f"expected an absolute path, given '{dump}'")
        if dump and info.data.get("requests") == 0:
            raise ValueError("needs requests above 0: nothing is recorded otherwise")
        return dump


class Observability(Section):
    """Metrics, traces, logs and the flight recorder. What is not used yet is checked; the plan of an apply says so."""

    recorder: Recorder = Recorder()
    """The flight recorder of gateways and workers."""

    metrics: Metrics = Metrics()
    """Metrics. Not used yet."""
    tracing: Tracing = Tracing()
    """Traces."""
    access_log: AccessLog = AccessLog()
    """The access log."""
    log: Log = Log()
    """Logs. Not used yet."""
