"""Settings of tracing, validated once: what is sampled (Triton's trace settings) and where spans go (its options of the
mode ``opentelemetry``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from isochrone.errors import InvalidArgument

OPENTELEMETRY: Final = "opentelemetry"
_TIMESTAMPS: Final = "TIMESTAMPS"
_DEFAULT_URLS: Final = {"http": "http://localhost:4318/v1/traces", "grpc": "http://localhost:4317"}
#: The largest number of any option: ten million traces would be gigabytes.
_MOST: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Which requests of a model are traced."""

    #: ``trace_level`` has TIMESTAMPS. Tensors are never traced.
    is_on: bool
    #: One in so many requests, beside those that are kept for a reason of their own; 0: none.
    rate: int
    #: At most so many traces; -1: any number.
    count: int

    @classmethod
    def read(cls, settings: Mapping[str, Sequence[str]]) -> SamplingSettings:
        """Of settings that ``worker.trace_settings`` has checked, by the names of the trace API."""
        if settings["trace_mode"] != [OPENTELEMETRY]:
            return cls(False, 0, 0)
        rate, count = int(settings["trace_rate"][0]), int(settings["trace_count"][0])
        return cls(_TIMESTAMPS in settings["trace_level"] and count != 0, rate, count)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where spans go, and how. The names are those of ``--trace-config opentelemetry,NAME=VALUE``."""

    #: OTLP over "http" (protobuf) or "grpc".
    protocol: str = "http"
    url: str = _DEFAULT_URLS["http"]
    #: Attributes of the server in every span; ``service.name`` is "isochrone" unless given.
    resource: Mapping[str, str] = field(default_factory=dict)
    #: Traces that wait for the exporter; more are dropped and counted. A trace is about 1 KB.
    bsp_max_queue_size: int = 8192
    #: Milliseconds between two exports. Sooner if ``bsp_max_export_batch_size`` traces wait.
    bsp_schedule_delay: int = 1000
    #: Traces in one export.
    bsp_max_export_batch_size: int = 512
    #: Milliseconds for one export, repetitions included.
    timeout: int = 5000
    #: Deadline misses and errors that are kept per second, ten times as many at once; more are counted.
    failures_per_second: int = 100

    @classmethod
    def read(cls, options: Mapping[str, Sequence[str]]) -> ExportSettings:
        """Of the options' texts; ``resource`` may be given several times, each time as NAME=VALUE."""
        values: dict[str, Any] = {}
        for name, texts in options.items():
            read = _READERS.get(name)
            if read is None:
                raise _wrong(name, f"one of {', '.join(_READERS)}", "")
            values[name] = read(name, texts)
        values.setdefault("url", _DEFAULT_URLS[values.get("protocol", "http")])
        return cls(**values)


def _protocol(name: str, texts: Sequence[str]) -> str:
    if texts[-1] not in _DEFAULT_URLS:
        raise _wrong(name, f"one of {', '.join(_DEFAULT_URLS)}", texts[-1])
    return texts[-1]


def _url(name: str, texts: Sequence[str]) -> str:
    """With a scheme, which Triton lets users omit."""
    text = texts[-1] if "://" in texts[-1] else f"http://{texts[-1]}"
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _wrong(name, "an address such as http://localhost:4318/v1/traces", texts[-1])
    return text


def _resource(name: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise _wrong(name, "NAME=VALUE", text)
        pairs[key] = value
    return pairs


def _number(name: str, texts: Sequence[str]) -> int:
    text = texts[-1]
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= _MOST):
        raise _wrong(name, f"an integer from 1 to {_MOST}", text)
    return int(text)


_READERS: Final[dict[str, Callable[[str, Sequence[str]], Any]]] = {
    "url": _url,
    "protocol": _protocol,
    "resource": _resource,
    "bsp_max_queue_size": _number,
    "bsp_schedule_delay": _number,
    "bsp_max_export_batch_size": _number,
    "timeout": _number,
    "failures_per_second": _number,
}
#: Options of the mode ``opentelemetry``.
EXPORT_OPTIONS: Final = tuple(_READERS)


def _wrong(name: str, expected: str, given: str) -> InvalidArgument:
    shown = f", given {given[:200]!r}" if given else ""
    return InvalidArgument(f"--trace-config opentelemetry,{name}: expected {expected}{shown}")
