"""The trace context of a request (W3C ``traceparent``, ``tracestate`` and ``baggage``), which travels on as it came.

The transports read it once per distinct message head, as HTTP headers or as gRPC metadata. What the standard wants
ignored, and what another server cannot be sent, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from isochrone.observe.tracing.trace_parent import TRACE_PARENT, trace_parent_in

#: Header → value.
TraceContext = Mapping[str, str]

TRACE_HEADERS: Final = frozenset((TRACE_PARENT, b"tracestate", b"baggage"))
#: Both transports carry printable ASCII, without spaces at the ends.
_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


def trace_context_in(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """The trace context in the header fields of a message; None: there is none."""
    found: dict[str, str] | None = None
    for name, value in headers:
        if name in TRACE_HEADERS and _VALUE.fullmatch(value) is not None:
            found = {} if found is None else found
            key, text = name.decode(), value.decode()
            # tracestate and baggage may be sent in several parts, which are one list.
            found[key] = f"{found[key]},{text}" if key in found else text
    if found is not None and trace_parent_in(headers) is None:
        # A tracestate belongs to its traceparent, and an invalid one begins no trace.
        found = {key: text for key, text in found.items() if key == "baggage"} or None
    return found
