"""Sends spans with OpenTelemetry's own OTLP exporters, over gRPC or HTTP.

The packages are an extra (``pip install isochrone[tracing]``) and are imported when a sink is opened, never before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Final

import isochrone
from isochrone.observe.tracing.encoding import encode_spans
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.spans import Span

_PACKAGES: Final = {
    "http": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}


class ExportFailed(Exception):
    """The collector did not take the spans."""


def missing_package(settings: ExportSettings) -> str:
    """The package without which spans cannot be exported; "": all are here."""
    for name in ("opentelemetry.sdk.trace", _PACKAGES[settings.protocol]):
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return ""


class OtlpSink:
    """One exporter of OpenTelemetry. It sends; the messages are made by ``encoding``."""

    def __init__(self, settings: ExportSettings) -> None:
        from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        # They log every repetition; this process logs failures itself, once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._success = SpanExportResult.SUCCESS
        resource = Resource.create({"service.name": "isochrone", **settings.resource})
        self._resource = _encoded_resource(resource)
        self._scope = InstrumentationScope(name="isochrone", version=isochrone.__version__).SerializeToString()
        self._exporter = _exporter(settings)

    def export(self, spans: list[Span]) -> None:
        if not spans:
            return
        # One by one, through interpreted code: compiled code would keep the interpreter's lock for all of them.
        each = (_with_valid_state(span) for span in spans)
        encoded = encode_spans(each, self._resource, self._scope)
        if self._exporter.export(EncodedSpans(encoded, len(spans))) is not self._success:
            raise ExportFailed("no success within the timeout")

    def close(self) -> None:
        self._exporter.shutdown()


class EncodedSpans:
    """What the exporters of OpenTelemetry get in place of spans, which they would encode."""

    def __init__(self, encoded: bytes, count: int) -> None:
        self.encoded = encoded
        self._count = count

    def __len__(self) -> int:
        return self._count

    def SerializePartialToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """As the message would, which the exporter over HTTP asks for its bytes."""
        return self.encoded


def _encoded_resource(resource: Any) -> bytes:
    """By the library: a resource may have lists of values, and is encoded once."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_theirs
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    message = encode_theirs([ReadableSpan("", SpanContext(1, 1, False), resource=resource)])
    encoded: bytes = message.resource_spans[0].resource.SerializeToString()
    return encoded


def _with_valid_state(span: Span) -> Span:
    """A ``tracestate`` that is invalid is left out, as W3C wants it."""
    if not span.trace_state:
        return span
    from opentelemetry.trace import TraceState

    return replace(span, trace_state=TraceState.from_header([span.trace_state]).to_header())


def _takes_encoded(module: Any, message: Callable[[EncodedSpans], Any]) -> Any:
    """The exporter of a module, which takes ``EncodedSpans`` as well.

    Transport, retries, compression and environment variables stay the library's. It has no way to send a message that
    is encoded already, so this class runs its methods with an encoder that passes such messages on. ``message``: what
    the exporter takes for one.
    """
    theirs = module.encode_spans

    def encode(spans: Any) -> Any:
        return message(spans) if isinstance(spans, EncodedSpans) else theirs(spans)

    names = {**vars(module), "encode_spans": encode}
    methods = {
        name: FunctionType(method.__code__, names, name, method.__defaults__, method.__closure__)
        for name, method in vars(module.OTLPSpanExporter).items()
        if isinstance(method, FunctionType) and "encode_spans" in method.__code__.co_names
    }
    if not methods:
        raise ExportFailed(f"{module.__name__} of this release of OpenTelemetry is not known; install another")
    return type("EncodedSpanExporter", (module.OTLPSpanExporter,), methods)


def _exporter(settings: ExportSettings) -> Any:
    seconds = settings.timeout / 1000
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc_exporter
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return _takes_encoded(grpc_exporter, lambda spans: ExportTraceServiceRequest.FromString(spans.encoded))(
            endpoint=settings.url, insecure=settings.url.startswith("http://"), timeout=max(1, round(seconds))
        )
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_exporter

    return _takes_encoded(http_exporter, lambda spans: spans)(endpoint=settings.url, timeout=seconds)
