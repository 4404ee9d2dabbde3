"""What ``--metrics-otlp`` says: where the figures of the metrics page go, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from isochrone.errors import FlagError

FLAG: Final = "--metrics-otlp"
_EXPECTED: Final = "http://HOST:4318/v1/metrics, https:// or grpc://HOST:4317"
_PACKAGES: Final = {
    "http": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}


@dataclass(frozen=True, slots=True)
class MetricsExport:
    """Where figures go."""

    #: "http" or "grpc".
    protocol: str
    url: str
    #: Seconds between two exports.
    seconds: float
    #: The process, as ``service.instance.id``.
    instance: str


def read_metrics_export(url: str, seconds: float, instance: str) -> MetricsExport | None:
    """None: figures go nowhere. Raises ``FlagError``."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https", "grpc") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise FlagError(FLAG, _EXPECTED, url[:200])
    if parts.scheme == "grpc":
        return MetricsExport("grpc", f"http://{parts.netloc}", seconds, instance)
    path = "" if parts.path.strip("/") else "/v1/metrics"
    return MetricsExport("http", url.rstrip("/") + path if path else url, seconds, instance)


def missing_package(settings: MetricsExport) -> str:
    """The package without which figures cannot be exported; "": all are here."""
    for name in ("opentelemetry.sdk.metrics.export", _PACKAGES[settings.protocol]):
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return ""
