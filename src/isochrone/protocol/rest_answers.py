"""What every REST route shares: how an error looks, and the deadline header."""

from __future__ import annotations

import msgspec
import structlog

from isochrone.clock import MILLISECOND
from isochrone.errors import Internal, InvalidArgument, IsochroneError, Unsupported
from isochrone.wire import compression
from isochrone.wire.exchange import Exchange, Head, Headers

log = structlog.get_logger()

JSON: Headers = ((b"content-type", b"application/json"),)


def respond_error(exchange: Exchange, error: IsochroneError) -> None:
    headers: Headers = JSON
    if isinstance(error, Unsupported):
        headers = (*JSON, (b"accept-encoding", compression.ACCEPTED))
    exchange.respond(error.http_status, headers, [msgspec.json.encode({"error": error.message})])


def respond_unexpected(exchange: Exchange, error: Exception) -> None:
    """A fault of ours: the caller is told, the log keeps where it was."""
    log.error("a request failed unexpectedly", exc_info=error)
    respond_error(exchange, Internal(f"{type(error).__name__}: {error}"))


def timeout_header(head: Head) -> int:
    """``x-request-timeout-ms`` in ns; 0: none."""
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
