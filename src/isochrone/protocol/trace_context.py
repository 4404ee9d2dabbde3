"""The trace context of a request (W3C ``traceparent``, ``tracestate`` and ``baggage``), which travels on as it came.

The transports read it once per distinct message head, as HTTP headers or as gRPC metadata. Nothing here understands the
values: what another server cannot be sent is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

#: Header → value.
TraceContext = Mapping[str, str]

TRACE_HEADERS: Final = frozenset((b"traceparent", b"tracestate", b"baggage"))
#: Both transports carry printable ASCII, without spaces at the ends.
_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


def trace_context_in(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """The trace context in the header fields of a message; None: there is none."""
    found: dict[str, str] | None = None
    parents = 0
    for name, value in headers:
        if name in TRACE_HEADERS and _VALUE.fullmatch(value) is not None:
            found = {} if found is None else found
            key, text = name.decode(), value.decode()
            parents += key == "traceparent"
            # tracestate and baggage may be sent in several parts, which are one list.
            found[key] = f"{found[key]},{text}" if key in found else text
    if parents > 1 and found is not None:
        # Which one is meant is not known, and a tracestate belongs to its traceparent.
        found = {key: text for key, text in found.items() if key == "baggage"} or None
    return found
