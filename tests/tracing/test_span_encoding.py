"""Spans as messages, against OpenTelemetry's own encoder."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_theirs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from isochrone.observe.tracing.encoding import encode_spans
from isochrone.observe.tracing.spans import CLIENT, INTERNAL, SERVER, Span

RESOURCE = Resource({"service.name": "isochrone", "host": "a"})
SCOPE = InstrumentationScope("isochrone", "1.2.3")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_traces = st.integers(1, 2**128 - 1)
_ids = st.integers(1, 2**64 - 1)
_values = st.one_of(
    st.text(max_size=300),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
_spans = st.builds(
    Span,
    name=st.text(max_size=300),
    trace_id=_traces,
    span_id=_ids,
    parent_id=st.one_of(st.just(0), _ids),
    start=st.integers(0, 2**63),
    end=st.integers(0, 2**63),
    attributes=st.dictionaries(st.text(min_size=1, max_size=20), _values, max_size=5),
    links=st.lists(st.tuples(_traces, _ids), max_size=3).map(tuple),
    error=st.one_of(st.none(), st.text(max_size=200)),
    kind=st.sampled_from([SERVER, CLIENT, INTERNAL]),
    trace_state=st.sampled_from(["", "a=1", "vendor=x,other=y"]),
)


def _readable(span: Span) -> Any:
    """The same span as OpenTelemetry has it."""
    state = TraceState.from_header([span.trace_state]) if span.trace_state else TraceState()

    def context(span_id: int, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(span.trace_id, span_id, is_remote, SAMPLED, state)

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id),
        parent=context(span.parent_id, is_remote=span.kind == SERVER) if span.parent_id else None,
        resource=RESOURCE,
        attributes=span.attributes,
        links=[Link(SpanContext(trace, linked, True, SAMPLED)) for trace, linked in span.links],
        kind=SpanKind[span.kind.upper()],
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start,
        end_time=span.end,
        instrumentation_scope=SCOPE,
    )


@given(st.lists(_spans, min_size=1, max_size=4))
def test_messages_are_those_of_the_library(spans: list[Span]) -> None:
    expected = encode_theirs([_readable(span) for span in spans])
    (of_resource,) = expected.resource_spans
    encoded = encode_spans(
        spans, of_resource.resource.SerializeToString(), of_resource.scope_spans[0].scope.SerializeToString()
    )
    assert ExportTraceServiceRequest.FromString(encoded) == expected


def test_texts_that_are_no_unicode_are_replaced() -> None:
    span = Span("infer \ud800", 1, 2, 0, 3, 4, {"isochrone.request_id": "\udfff"})
    message = ExportTraceServiceRequest.FromString(encode_spans([span], b"", b""))
    (found,) = message.resource_spans[0].scope_spans[0].spans
    assert (found.name, found.attributes[0].value.string_value) == ("infer ?", "?")
