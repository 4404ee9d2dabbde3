"""The trace context that a request sends on: that of its own span, not its caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isochrone.observe.tracing.trace_parent import write_trace_parent


class SentContext(dict[str, str]):
    """The headers, and the span that they name. Requests in this process that carry it are steps of that span."""

    __slots__ = ("parent_id", "reason", "span_id", "steps", "trace_id")

    def __init__(
        self, received: Mapping[str, str] | None, trace_id: int, span_id: int, parent_id: int, reason: str
    ) -> None:
        """``reason``: why the trace is kept, as far as the start of a request shows; "": it is not, so far."""
        super().__init__(received or {})
        self["traceparent"] = write_trace_parent(trace_id, span_id, bool(reason))
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.reason = reason
        #: Records of the steps that have ended.
        self.steps: list[tuple[Any, ...]] = []
