"""The trace context of a request (W3C ``traceparent``, ``tracestate`` and ``baggage``), which travels on as it came.

The transports read it once per distinct message head, as HTTP headers or as gRPC metadata. Nothing here understands the
values: what another server cannot be sent is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

#: Header → value.
TraceContext = Mapping[str, str]

_NAMES: Final = frozenset((b"traceparent", b"tracestate", b"baggage"))
#: Both transports carry printable ASCII, without spaces at the ends.
_VALUE: Final = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


def trace_context_of(head: Head) -> TraceContext | None:
    """The trace context in a message head; None: there is none."""
    found: dict[str, str] | None = None
    for name, value in head.headers:
        if name in _NAMES and _VALUE.fullmatch(value) is not None:
            found = {} if found is None else found
            key, text = name.decode(), value.decode()
            # tracestate and baggage may be sent in several parts, which are one list.
            found[key] = f"{found[key]},{text}" if key in found else text
    return found
