"""W3C trace context: the caller's current OpenTelemetry span, as headers of a request."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def trace_headers(given: Mapping[str, str]) -> Mapping[str, str]:
    """The given headers, and ``traceparent`` and ``tracestate`` of the current span unless they are given.

    A program without OpenTelemetry has no current span: the library is used if something has imported it, and never
    imported from here.
    """
    if "opentelemetry.trace" not in sys.modules or "traceparent" in given:
        return given
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    current: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(current)
    return {**current, **given}
