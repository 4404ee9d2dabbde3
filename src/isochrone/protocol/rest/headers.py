"""Request headers that REST reads, once per distinct message head: deadline, body layout, content encoding.

To read another request header, parse it here and keep the result on the route that needs it (``infer.InferRoute``,
``generate.GenerateRoute``). Headers that gRPC reads too are in ``protocol.headers``.
"""

from __future__ import annotations

from isochrone.clock import MILLISECOND
from isochrone.errors import InvalidArgument
from isochrone.protocol.compression.codec import is_identity
from isochrone.protocol.compression.inflating import InflatingRoute
from isochrone.protocol.rest.answers import respond_error
from isochrone.wire.exchange import Head, Route


def timeout_header(head: Head) -> int:
    """``x-request-timeout-ms`` in ns; 0: no timeout."""
    value = head.get(b"x-request-timeout-ms")
    if value is None:
        return 0
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds < 1e9:
        raise InvalidArgument(f"header x-request-timeout-ms: expected a positive number, given {value[:32]!r}")
    return int(milliseconds * MILLISECOND)


def header_length(head: Head) -> int | None:
    value = head.get(b"inference-header-content-length")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 12:
        raise InvalidArgument(
            f"header Inference-Header-Content-Length: expected a non-negative integer, given {value[:32]!r}"
        )
    return int(value)


def inflating(route: Route, head: Head, limit: int) -> Route:
    """The route for requests with this head: ``route`` itself, or a route that decompresses bodies for it."""
    encoding = head.get(b"content-encoding")
    if encoding is None or is_identity(encoding) or route.streaming:
        return route
    return InflatingRoute(route, encoding, limit, respond_error)
