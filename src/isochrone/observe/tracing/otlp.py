"""Sends spans with OpenTelemetry's own OTLP exporters, over gRPC or HTTP.

The packages are an extra (``pip install isochrone[tracing]``) and are imported when a sink is opened, never before.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any, Final

import isochrone
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.spans import SERVER, Span

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
    """One exporter of OpenTelemetry."""

    def __init__(self, settings: ExportSettings) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        # They log every repetition; this process logs failures itself, once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._success = SpanExportResult.SUCCESS
        self._resource = Resource.create({"service.name": "isochrone", **settings.resource})
        self._scope = InstrumentationScope("isochrone", isochrone.__version__)
        self._exporter = _exporter(settings)

    def export(self, spans: list[Span]) -> None:
        if spans and self._exporter.export([self._readable(span) for span in spans]) is not self._success:
            raise ExportFailed("no success within the timeout")

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        sampled = TraceFlags(TraceFlags.SAMPLED)
        state = TraceState.from_header([span.trace_state]) if span.trace_state else TraceState()

        def context(trace_id: int, span_id: int, *, is_remote: bool = False) -> Any:
            return SpanContext(trace_id, span_id, is_remote, sampled, state)

        parent = context(span.trace_id, span.parent_id, is_remote=span.kind == SERVER) if span.parent_id else None
        return ReadableSpan(
            name=span.name,
            context=context(span.trace_id, span.span_id),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(SpanContext(trace, linked, True, sampled)) for trace, linked in span.links],
            kind=SpanKind[span.kind.upper()],
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )


def _exporter(settings: ExportSettings) -> Any:
    seconds = settings.timeout / 1000
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(
            endpoint=settings.url, insecure=settings.url.startswith("http://"), timeout=max(1, round(seconds))
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=settings.url, timeout=seconds)
