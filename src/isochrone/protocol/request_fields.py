"""The header fields that follow a request into its model: stages, trace context, division. Picked out in one pass.

A caller that sends a trace context makes every head a new one, so that nothing of it is memoised. Most heads have none
of these fields, and are gone through once instead of once for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from isochrone.protocol.divisions import DIVISION_HEADER, read_division
from isochrone.protocol.stages import STAGES_HEADER, Stages, parse_stages
from isochrone.protocol.trace_context import TRACE_HEADERS, TraceContext, trace_context_in

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

_NAMES: Final = TRACE_HEADERS | {DIVISION_HEADER, STAGES_HEADER}


class RequestFields(NamedTuple):
    """As they are read; None or empty: absent."""

    stages: Stages | None
    trace_context: TraceContext | None
    division: str


_NONE: Final = RequestFields(None, None, "")


def request_fields(head: Head, *, with_stages: bool = True) -> RequestFields:
    """``with_stages``: whether the header of stages is read; raises if it is malformed."""
    found = [field for field in head.headers if field[0] in _NAMES]
    if not found:
        return _NONE
    stages = division = None
    for name, value in found:
        if name == DIVISION_HEADER:
            division = value if division is None else division
        elif name == STAGES_HEADER:
            stages = value if stages is None else stages
    return RequestFields(
        None if stages is None or not with_stages else parse_stages(stages),
        trace_context_in(found),
        read_division(division),
    )
