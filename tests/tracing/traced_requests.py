"""Requests for tests of tracing: they carry the trace context that a test gives them, and no data."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.clock import NEVER, now_ns
from isochrone.observe.tracing.trace_parent import write_trace_parent
from isochrone.protocol.messages import InferRequest, Plan


class TracedRequest(InferRequest):
    context: Mapping[str, str] | None = None

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self.context


def request(
    *,
    late: bool = False,
    context: Mapping[str, str] | None = None,
    identity: str = "",
    age_ns: int = 0,
    model: str = "m",
) -> TracedRequest:
    """One that arrived now, or ``age_ns`` ago; ``late``: its deadline has passed."""
    now = now_ns()
    made = TracedRequest(Plan(model, "", (), None), identity, {}, now - age_ns, now - 1 if late else NEVER)
    made.context = context
    return made


def caller(trace_id: int = 5, span_id: int = 6, is_sampled: bool = True) -> dict[str, str]:
    """The trace context of a caller."""
    return {"traceparent": write_trace_parent(trace_id, span_id, is_sampled), "tracestate": "a=b", "baggage": "c=d"}
