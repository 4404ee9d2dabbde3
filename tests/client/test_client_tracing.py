"""The caller's trace goes with its requests: from OpenTelemetry's current span, or as it is given."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from isochrone.client.calls import make_call
from isochrone.client.tracing import trace_headers

SPAN = SpanContext(
    trace_id=0x0AF7651916CD43DD8448EB211C80319C,
    span_id=0xB7AD6B7169203331,
    is_remote=False,
    trace_flags=TraceFlags(1),
    trace_state=TraceState([("vendor", "value")]),
)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_current_span_is_sent() -> None:
    with trace.use_span(NonRecordingSpan(SPAN)):
        call = make_call("m", {"x": [1.0]}, None, "", None, "", 0, None, {"X-Other": "1"})
    assert call.headers == {"traceparent": PARENT, "tracestate": "vendor=value", "x-other": "1"}


def test_a_given_parent_wins() -> None:
    given = {"traceparent": PARENT.replace("01", "00")}
    with trace.use_span(NonRecordingSpan(SPAN)):
        assert trace_headers(given) == given


def test_without_a_span_nothing_is_added() -> None:
    assert trace_headers({}) == {}


def test_the_library_is_not_imported_for_a_program_without_it() -> None:
    code = (
        "import sys; from isochrone.client.tracing import trace_headers;"
        "assert trace_headers({'a': 'b'}) == {'a': 'b'}; assert 'opentelemetry' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True).returncode == 0
