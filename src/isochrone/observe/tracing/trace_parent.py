"""The W3C header ``traceparent`` (https://www.w3.org/TR/trace-context/): read strictly, written as version 00.

The only reading of it: both transports, gateways, workers and exemplars take the same headers for valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

#: The name of the field, as both transports give it.
TRACE_PARENT: Final = b"traceparent"
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED: Final = 1
#: Where the flags are in every version so far.
_FLAGS: Final = slice(53, 55)
#: The flags whose last bit is set, as a header spells them.
_SAMPLED_FLAGS: Final = frozenset(f"{flags:02x}" for flags in range(256) if flags & _SAMPLED)


class TraceParent(NamedTuple):
    """A span that another span is a child of."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_trace_parent(text: str) -> TraceParent | None:
    """None: the header is invalid, and the standard wants it ignored."""
    found = _FORM.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def trace_parent_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceParent | None:
    """Of the header fields of a message; None also if it has several: which one is meant is not known."""
    given = [value for name, value in headers if name == TRACE_PARENT]
    return parse_trace_parent(given[0].decode("latin-1")) if len(given) == 1 else None


def write_trace_parent(trace_id: int, span_id: int, is_sampled: bool) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{is_sampled:02x}"


def trace_name(trace_id: int) -> str:
    """A trace's id as headers, logs and exemplars write it."""
    return f"{trace_id:032x}"


def says_sampled(text: str) -> bool:
    """Whether a header is valid, and its caller samples the trace. Most do not, which a look at the flags shows."""
    return text[_FLAGS] in _SAMPLED_FLAGS and parse_trace_parent(text) is not None


def sampled_trace(parent: TraceParent | None) -> str:
    """The id of a trace that its caller samples; "": it does not, or there is none."""
    return trace_name(parent.trace_id) if parent is not None and parent.is_sampled else ""
