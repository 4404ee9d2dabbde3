"""The header fields that follow a request into its model: stages, trace context, division, id. Picked out in one pass.

A caller that sends a trace context makes every head a new one, so that nothing of it is memoised. Most heads have none
of these fields, and are gone through once instead of once for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from isochrone.protocol.headers.divisions import DIVISION_HEADER, read_division
from isochrone.protocol.headers.stages import STAGES_HEADER, Stages, parse_stages
from isochrone.protocol.headers.trace_context import TRACE_HEADERS, TraceContext, trace_context_in

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

#: The id of a request whose message has none, as many proxies set it.
REQUEST_ID_HEADER: Final = b"x-request-id"
_NAMES: Final = TRACE_HEADERS | {DIVISION_HEADER, STAGES_HEADER, REQUEST_ID_HEADER}
#: Longer ids are cut off.
_MAX_ID: Final = 200


class RequestFields(NamedTuple):
    """As they are read; None or empty: absent."""

    stages: Stages | None
    trace_context: TraceContext | None
    division: str
    #: x-request-id, or else the id of the trace.
    caller_id: str = ""


_NONE: Final = RequestFields(None, None, "")


def request_fields(head: Head, *, with_stages: bool = True) -> RequestFields:
    """``with_stages``: whether the header of stages is read; raises if it is malformed."""
    found = [field for field in head.headers if field[0] in _NAMES]
    if not found:
        return _NONE
    stages = division = named = None
    for name, value in found:
        if name == DIVISION_HEADER:
            division = value if division is None else division
        elif name == STAGES_HEADER:
            stages = value if stages is None else stages
        elif name == REQUEST_ID_HEADER:
            named = value
    trace_context = trace_context_in(found)
    return RequestFields(
        None if stages is None or not with_stages else parse_stages(stages),
        trace_context,
        read_division(division),
        _caller_id(named, trace_context),
    )


def _caller_id(named: bytes | None, trace_context: TraceContext | None) -> str:
    if named:
        return named[:_MAX_ID].decode("latin-1")
    parts = trace_context.get("traceparent", "").split("-") if trace_context is not None else []
    return parts[1][:_MAX_ID] if len(parts) > 1 else ""


def caller_ids(head: Head) -> tuple[str, ...]:
    """Every id in a head: x-request-id, and that of the trace. For whoever does not read messages."""
    named = (head.get(REQUEST_ID_HEADER) or b"")[:_MAX_ID].decode("latin-1")
    parts = (head.get(b"traceparent") or b"")[:_MAX_ID].decode("latin-1").split("-")
    return tuple(found for found in (named, parts[1] if len(parts) > 1 else "") if found)
